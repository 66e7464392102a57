"""From prompts to rollouts: seeds, order, numbers of samples, and what becomes of groups without a score."""

import argparse
import json
import math
from types import SimpleNamespace

import pytest
import torch
from openrlhf.utils.deepspeed import DeepspeedStrategy
from torchdata.stateful_dataloader import StatefulDataLoader

from grpo.flags.upstream import trainer_parser
from grpo.hooks.flag_aliases import in_sections
from grpo.rollout.stage import Stage
from grpo.stack.problem import UserError
from grpo.train import sampler
from grpo.train.rollout_filters import Drawn, Step

SETTINGS = {
    "dynamic_filtering": True, "dynamic_filtering_reward_range": (0.0, 1.0), "dynamic_filtering_batches": 4,
    "n_samples_per_prompt": 2, "rollout_batch_size": 2, "seed": 1,
    "remote_rm_url": ["r.py"], "top_p": 1.0, "prompt_max_len": 8, "vllm_enable_sleep": False,
    "pipeline": False, "temperature": 1.0,
}  # fmt: skip
HOW = sampler.SamplingOptions(2, 1.0, 8)


class Ray:
    """The last prompt is answered first."""

    @staticmethod
    def wait(references, **_):
        return references[-1:], references[:-1]

    @staticmethod
    def get(reference):
        return reference


class Engine:
    """Notes what it is asked; its samples have the scores that `scores_of` has for a prompt."""

    def __init__(self, scores_of=lambda prompt: [1.0, 0.0]):
        self.scores_of, self.asked = scores_of, []
        self.get_num_unfinished_requests = SimpleNamespace(remote=lambda: 0)
        self.generate_responses = SimpleNamespace(remote=self._answer)

    def _answer(self, **call):
        self.asked.append(call)
        return Answers({"prompt": call["prompt"], "score": score} for score in self.scores_of(call["prompt"]))


class Answers(list):
    """Is its own reference."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


@pytest.fixture
def make_sampler(monkeypatch):
    """Return a function that makes a sampler of an engine."""
    monkeypatch.setattr(sampler, "ray", Ray)
    monkeypatch.setattr(sampler, "build_rollout", lambda response, *_: SimpleNamespace(
        prompts=[response["prompt"]], scores=torch.tensor([response["score"]]), info={}, rollout_log_probs=None
    ))  # fmt: skip

    def make(engine, **changes):
        args = argparse.Namespace(**SETTINGS | changes)
        return sampler.Sampler(args, None, [engine], None, None, None, None)

    return make


def make_prompts(*names):
    return iter([(["source"], [name], ["label"]) for name in names])


def draw(sampler, problems, step=None):
    """Let a sampler draw the batch of a step from these problems."""
    sampler._prompts = problems
    return sampler.sample_step(step or Step(sampler.args, 7, max_new_tokens=8))


def test_a_prompt_samples_the_same_whatever_was_drawn_before_it(make_sampler):
    seeds = []
    for names in ("pq", "qp"):
        sampler = make_sampler(engine := Engine(), dynamic_filtering=False)
        draw(sampler, make_prompts(*names))
        seeds.append({call["prompt"]: call["sampling_params"].seed for call in engine.asked})
    assert seeds[0] == seeds[1] and seeds[0]["p"] != seeds[0]["q"]


def test_the_engine_with_the_fewest_requests_gets_a_prompt(make_sampler):
    sampler = make_sampler(Engine())
    busy, idle = Engine(), Engine()
    busy.get_num_unfinished_requests = SimpleNamespace(remote=lambda: 3)
    sampler._engines = [busy, idle]
    sampler._send(Stage(sampler.args, "eval 0"), list(make_prompts(*"abc")), HOW)
    assert [call["prompt"] for call in idle.asked] == ["a", "b"] and len(busy.asked) == 1


@pytest.mark.parametrize("first", [math.nan, 1.0])
def test_a_batch_without_scores_is_not_silently_filtered_out(make_sampler, first):
    """The next prompts would be drawn, to the last one, and nothing be trained."""
    sampler = make_sampler(Engine(lambda prompt: [first if prompt == "p1" else math.nan] * 2))
    problems = make_prompts(*(f"p{number}" for number in range(9)))
    with pytest.raises(UserError, match="reward function"):
        draw(sampler, problems)
    assert len(list(problems)) == (6 if math.isnan(first) else 5)  # each that was left out has drawn one more


def test_the_last_prompts_of_an_episode_that_make_no_batch_are_not_sampled(make_sampler):
    sampler = make_sampler(engine := Engine(), dynamic_filtering=False)
    assert draw(sampler, make_prompts("p")) == Drawn([], 0, True) and not engine.asked


def test_the_order_of_the_prompts_follows_from_the_seed_and_survives_a_resume():
    def make_loader(seed: int, step: int, state=None) -> StatefulDataLoader:
        loader = StatefulDataLoader(range(50), shuffle=True, drop_last=True)  # as OpenRLHF makes it
        if state:
            loader.load_state_dict(state)
        args, never = SimpleNamespace(seed=seed, routing_replay=False), SimpleNamespace(is_due=lambda: False)
        made = sampler.Sampler(args, None, [], loader, None, SimpleNamespace(limit=lambda step: 10 * step), never)
        assert made.begin_step(step).max_new_tokens == 10 * step
        assert (loader.sampler.generator.initial_seed() == seed) == (step == 1)
        return loader

    loader = make_loader(1, 1)
    first, second = ([int(one) for one in loader] for _ in range(2))
    assert first != second and sorted(first) == list(range(50))
    assert [int(one) for one in make_loader(1, 1)] == first != [int(one) for one in make_loader(2, 1)]
    begun, drawn = make_loader(1, 1), []
    for one in begun:
        drawn.append(int(one))
        if len(drawn) == 20:
            break
    assert drawn + [int(one) for one in make_loader(7, 6, begun.state_dict())] == first


LABELS = ["2024-01-31", "2025-02-01", 2**63 + 1, "1", 1, 0.1, "\N{SNOWMAN}"]


@pytest.mark.parametrize("folder", ["user@corp", "a,b", "g[1]", "*", "plain"])
def test_the_loaders_give_each_label_as_the_file_has_it_whatever_the_files_name(tmp_path, folder):
    """datasets makes dates of text and floats of large integers; OpenRLHF's reader splits names at @ and commas."""
    file = tmp_path / folder / "train.jsonl"
    file.parent.mkdir()
    file.write_text("".join(json.dumps({"prompt": f"p{n}", "label": one}) + "\n" for n, one in enumerate(LABELS)))
    flags = ["--prompt_data", str(file), "--eval_dataset", str(file), "--input_key", "prompt", "--label_key", "label"]
    strategy = DeepspeedStrategy(args=in_sections(trainer_parser().parse_args(flags)))
    for loader in sampler.make_loaders(strategy, None):
        rows = sorted((prompt, label) for _, [prompt], [label], *_ in loader)
        assert [(label, type(label)) for _, label in rows] == [(one, type(one)) for one in LABELS]
