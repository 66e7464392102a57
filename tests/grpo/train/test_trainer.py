"""The loop over steps: the order of its parts, what is sampled meanwhile, evaluations, checkpoints, and lengths."""

import argparse
import math
import random
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from grpo.checkpoint import trainer_state
from grpo.stack import json_files
from grpo.train import trainer as module
from grpo.train.rollout_filters import Drawn
from grpo.train.trainer import Trainer

SETTINGS = {
    "num_episodes": 1, "max_steps": 3, "eval_steps": 1, "eval_at_start": True, "save_steps": 1,
    "eval_temperature": 1.0, "eval_n_samples_per_prompt": 1, "metrics_dir": None, "remote_rm_url": None,
    "agent_func_path": None, "ckpt_path": None, "log_samples": None, "use_tensorboard": None, "use_wandb": None,
    "use_trackio": False, "length_schedule": None, "generate_max_len": 9, "pipeline": False,
    "routing_replay": False, "parity_limit": 0.0, "top_p": 1.0, "seed": 0,
    "dynamic_filtering": False, "rollout_batch_size": 1, "n_samples_per_prompt": 1, "vllm_enable_sleep": False,
    "adapter": None, "actor_shard": "none",
}  # fmt: skip


def make_rollout(correct: float = 0.0, limit: float = 9.0) -> SimpleNamespace:
    numbers = {"correct": correct, "truncated": 0.0, "response_length": 3.0, "length_limit": limit}
    return SimpleNamespace(
        prompts=["p"], labels=["l"], rewards=torch.tensor([0.5]), scores=torch.tensor([0.7]),
        sequences=torch.ones(1, 4, dtype=torch.long), action_mask=torch.ones(1, 3), attention_mask=torch.ones(1, 4),
        info={name: torch.tensor([value]) for name, value in numbers.items()},
    )  # fmt: skip


ENGINE = SimpleNamespace()


class Loader(list):
    """Of nine problems with one prompt."""

    def __init__(self) -> None:
        super().__init__([(["source"], ["p"], ["l"])] * 9)
        self.dataset = SimpleNamespace(prompts=["p"], datasources=["source"])
        self.sampler = SimpleNamespace(generator=torch.Generator())

    def state_dict(self) -> dict:
        return {"position": 1}


@pytest.fixture
def make_stub_trainer(monkeypatch, tmp_path: Path):
    """Return a function that makes a trainer whose ranks and engines do nothing but note the calls."""
    monkeypatch.setattr(module.ray, "get", lambda references: references)
    monkeypatch.setattr(module.step_metrics, "add_step_metrics", lambda *_: None)
    made = SimpleNamespace(zero_spread_groups=math.nan)
    monkeypatch.setattr(Trainer, "_compute_advantages", lambda *_: ([], made))
    data = tmp_path / "problems.jsonl"
    data.write_text('{"id": "problem-1", "prompt": "p", "label": "l"}\n')

    def make(sample, **changes) -> tuple[Trainer, list]:
        trainer, calls = object.__new__(Trainer), []
        trainer.args = argparse.Namespace(
            **SETTINGS | {"run_dir": str(tmp_path), "prompt_data": str(data), "eval_dataset": str(data)} | changes
        )
        trainer.tokenizer = SimpleNamespace(
            added_tokens_decoder={}, decode=lambda *_, **__: "text", encode=lambda *_, **__: [9]
        )

        def run_on_ranks(method: str, **given):
            calls.append((method, given))
            status = {"grad_norms": [0.1], "micro_batches": [], "device_memory": 0.0, "metric_errors": 0.0}
            return [{}] if method == "states" else [status]

        trainer.actors = SimpleNamespace(async_run_method=run_on_ranks, async_run_method_batch=lambda *_, **__: [])
        trainer.engines, trainer.problems, trainer.held_out = [ENGINE], Loader(), Loader()[:1]
        monkeypatch.setattr(module.Sampler, "sample_step", lambda _, step: sample(step))
        monkeypatch.setattr(module.Sampler, "sample_held_out", lambda *_: [make_rollout(correct=1.0)])
        return trainer, calls

    return make


def sample_one_rollout(step):
    return Drawn([make_rollout(limit=step.max_new_tokens)], 1, False)


def test_a_step_trains_then_syncs_then_saves_and_evaluations_frame_the_steps(make_stub_trainer, tmp_path):
    trainer, calls = make_stub_trainer(sample_one_rollout)
    trainer.fit()
    assert [method for method, _ in calls] == ["states", *["update", "sync", "save"] * 3]
    assert [row["step"] for row in json_files.read_rows(tmp_path / "metrics.jsonl")] == [1, 2, 3]
    rows = json_files.read_rows(tmp_path / "eval.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert rows[-1]["by_source"]["source"]["exact_match"] == 1.0


def test_a_checkpoint_has_the_position_and_the_random_states(make_stub_trainer):
    trainer, calls = make_stub_trainer(sample_one_rollout)
    random.seed(5)
    trainer.fit()
    expected = random.random()
    states = calls[-1][1]["states"]
    trainer_state.set_random_state(states["random"])
    assert random.random() == expected
    assert (states["global_step"], states["episode"], states["total_consumed_prompts"]) == (3, 0, 3)
    assert states["data_loader_state_dict"] == {"position": 1}


def test_an_episode_without_enough_prompts_is_followed_by_the_next(make_stub_trainer, tmp_path):
    results = iter([sample_one_rollout(SimpleNamespace(max_new_tokens=9)), Drawn([], 0, True)] * 2)
    trainer, calls = make_stub_trainer(lambda _: next(results), num_episodes=2, max_steps=None)
    trainer.fit()
    assert [given["states"]["episode"] for method, given in calls if method == "save"] == [0, 1]


class Overlap:
    """Parts of the loop note what is being sampled meanwhile.

    Sampling ahead ends only once the step before has trained, and a batch gets its rewards only once the next one is
    begun: a loop that does not overlap these stands still.
    """

    def __init__(self) -> None:
        self.begun, self.sampling, self.trained, self.seen = 0, 0, 0, []
        self.changed = threading.Condition()

    def note(self, what: str) -> None:
        self.seen.append((what, self.sampling))

    def sample(self, step):
        with self.changed:
            self.begun += 1
            batch, self.sampling = self.begun, self.sampling + 1
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.trained >= batch - 1, 400)
        time.sleep(0.2)  # a loop that does not wait for it has sent the adapter by then
        with self.changed:
            self.sampling -= 1
            step.sampled.set()
            if batch < 3:
                assert self.changed.wait_for(lambda: self.begun > batch, 400)
        return sample_one_rollout(step)

    def update(self, _):
        with self.changed:
            if self.trained + 1 < 3:
                assert self.changed.wait_for(lambda: self.sampling, 400)
            self.note("train")
            self.trained += 1
            self.changed.notify_all()
        return {"grad_norms": [0.1, 0.1]}


def test_with_pipeline_the_loop_samples_only_while_it_trains(make_stub_trainer, monkeypatch):
    loop = Overlap()
    trainer, _ = make_stub_trainer(loop.sample, pipeline=True, save_steps=math.inf)
    monkeypatch.setattr(Trainer, "_update", lambda _, batches: loop.update(batches))
    monkeypatch.setattr(Trainer, "_sync", lambda _: loop.note("sync"))
    monkeypatch.setattr(module.Evaluation, "run", lambda _, step: loop.note(f"evaluation {step}"))
    monkeypatch.setattr(module.Evaluation, "run_first", lambda *_: None)
    monkeypatch.setattr(module.Evaluation, "run_last", lambda *_: None)
    trainer.fit()
    assert loop.seen == [
        *[("train", 1), ("sync", 0), ("evaluation 1", 0)],
        *[("train", 1), ("sync", 0), ("evaluation 2", 0)],
        *[("train", 0), ("sync", 0), ("evaluation 3", 0)],  # no step comes after it
    ]


def test_a_failed_step_lets_no_request_save_it(make_stub_trainer, monkeypatch):
    trainer, _ = make_stub_trainer(sample_one_rollout)

    def fail(_, batches):
        raise FloatingPointError("the adapter is not finite")

    monkeypatch.setattr(Trainer, "_update", fail)
    with pytest.raises(FloatingPointError):
        trainer.fit()
    assert not trainer.saver._ranks_idle.acquire(blocking=False)
