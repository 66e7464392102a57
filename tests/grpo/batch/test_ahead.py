"""Batches that are sampled a step ahead: the same ones in any order of the engines, and after a resume."""

import io
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openrlhf.trainer import ppo_trainer

from grpo.batch.ahead import Batches
from grpo.metrics import step_metrics
from grpo.run import evaluation, run_log
from reward import judge_place

from .drawn_steps import Run

STEPS = 6
CHANGES = st.fixed_dictionaries(
    {
        "problems": st.integers(5, 14),
        "dynamic_filtering": st.booleans(),
        "retire_after": st.sampled_from([None, 1]),
        "num_episodes": st.sampled_from([2, 200]),
        "seed": st.integers(0, 99),
    }
)
any_settings = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def saved(state: dict) -> dict:
    """What a checkpoint gives back, which holds tensors and plain values only."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@any_settings
@given(CHANGES, st.integers(1, STEPS - 1))
def test_a_resumed_run_has_the_batches_of_an_uninterrupted_one(monkeypatch, changes, at):
    whole = Run(monkeypatch, order=1, pipeline=True, **changes).until(STEPS)
    assert Run(monkeypatch, order=2, pipeline=True, **changes).until(STEPS).rows == whole.rows
    if at < len(whole.rows):
        resumed = Run(monkeypatch, order=3, pipeline=True, **changes).resume(saved(whole.states[at - 1])).until(STEPS)
        assert resumed.rows == whole.rows[at:]


@any_settings
@given(CHANGES)
def test_only_the_policy_that_samples_differs_from_steps_in_turn(monkeypatch, changes):
    """What a step draws follows from run, step, and prompt, unless it depends on what earlier steps solved."""
    changes["retire_after"] = None
    ahead, in_turn = (Run(monkeypatch, order=1, pipeline=on, **changes).until(STEPS) for on in (True, False))
    assert [samples for samples, _ in ahead.rows] == [samples for samples, _ in in_turn.rows]
    assert [metrics["staleness"] for _, metrics in in_turn.rows] == [0] * len(in_turn.rows)
    assert [metrics["staleness"] for _, metrics in ahead.rows] == [0, *[1] * (len(ahead.rows) - 1)]


def test_a_checkpoint_holds_the_next_batch_only_with_pipeline(monkeypatch):
    ahead, in_turn = (Run(monkeypatch, order=1, pipeline=on).until(3) for on in (True, False))
    assert [state["ahead"]["step"] for state in ahead.states] == [2, 3, 4]
    assert all("ahead" not in state for state in in_turn.states)


def test_without_pipeline_a_saved_batch_comes_first(monkeypatch):
    whole = Run(monkeypatch, order=1, pipeline=True).until(3)
    resumed = Run(monkeypatch, order=1).resume(saved(whole.states[1])).until(4)
    assert resumed.rows[0] == whole.rows[2]
    assert [metrics["staleness"] for _, metrics in resumed.rows] == [1, 0]


def test_the_last_step_samples_nothing_ahead(monkeypatch):
    run = Run(monkeypatch, order=1, pipeline=True, max_steps=3).until(3)
    assert "ahead" in run.states[1] and "ahead" not in run.states[2]


class Slow:
    """A generator whose batches are sampled when they are told to."""

    def __init__(self, error: Exception | None = None) -> None:
        values = {"retire_after": None, "retire_for": 1, "seed": 0, "dynamic_filtering": False, "partial_rollouts": 0}
        self.args = SimpleNamespace(**values)
        self.sampler = SimpleNamespace(generator=torch.Generator())
        self.prompts_dataloader = SimpleNamespace(sampler=self.sampler)
        self.may_end, self.error = threading.Event(), error

    def generate_samples(self, **arguments):
        if self.may_end.wait(60) and self.error:
            raise self.error
        return [arguments], None, 1, False


def test_a_batch_is_sampled_meanwhile_with_the_arguments_of_its_start():
    generator, limit = Slow(), [5]
    batches = Batches(generator, lambda step: {"step": step, "limit": limit[0]}, episodes=1)
    batches.sample_ahead(0, 2)
    limit[0] = 9
    generator.may_end.set()
    assert batches.wait() == [{"step": 2, "limit": 5}]
    assert batches.take(0, 2) == ([{"step": 2, "limit": 5}], None, 1, False)
    assert batches.wait() == []


def test_what_goes_wrong_meanwhile_is_raised_before_the_sync():
    generator = Slow(ValueError("an engine died"))
    batches = Batches(generator, lambda _: {}, episodes=1)
    batches.sample_ahead(0, 2)
    generator.may_end.set()
    for _ in range(2):
        with pytest.raises(ValueError, match="an engine died"):
            batches.wait()


def test_a_batch_that_a_dead_judge_spoilt_is_not_saved(monkeypatch):
    def require():
        raise RuntimeError("the judge's process has died")

    monkeypatch.setattr(judge_place, "require", require)
    generator = Slow()
    batches = Batches(generator, lambda _: {}, episodes=1)
    batches.sample_ahead(0, 2)
    generator.may_end.set()
    for call in (batches.wait, batches.state):
        with pytest.raises(RuntimeError, match="the judge's process has died"):
            call()


class Loop:
    """OpenRLHF's own loop, whose parts note what is being sampled meanwhile.

    Sampling ahead ends only once the step before has trained: a loop that does not overlap the two stands still.
    """

    def __init__(self, monkeypatch, run_dir):
        self.sampling, self.trained, self.seen = 0, 0, []
        self.changed = threading.Condition()
        self.trainer = this = object.__new__(ppo_trainer.PPOTrainer.__ray_metadata__.modified_class)
        this.args = SimpleNamespace(
            pipeline=True, num_episodes=1, max_steps=3, eval_steps=1, parity_limit=0.0, length_schedule=None,
            partial_rollouts=0,
            generate_max_len=9, dynamic_filtering=False, resume_from=None, use_dynamic_batch=False,
            run_dir=str(run_dir), save_steps=1,
        )  # fmt: skip
        this.generate_kwargs, this.kl_ctl, this.vllm_engines = {}, None, ["engine"]
        # OpenRLHF 0.9.3 and 0.9.6 call one or the other.
        this.tokenizer = SimpleNamespace(**dict.fromkeys(("batch_decode", "decode"), lambda *_, **__: [""]))
        this.prompts_dataloader = type("Loader", (list,), {"state_dict": lambda _: {}})([None] * 9)
        this.eval_dataloader, this.critic_model_group = ["problem"], None
        this.wandb_logger = this.tensorboard_logger = None
        this.samples_generator = Slow()
        this.samples_generator.generate_samples = self._generate
        this.experience_maker = SimpleNamespace(make_experience_batch=lambda samples: samples)
        this.actor_model_group = SimpleNamespace(async_run_method_batch=lambda **_: [])
        this.ppo_train = self._train
        this.broadcast_to_vllm = lambda: self._note("sync")
        this.save_logs_and_checkpoints = lambda *_: self._note("save")
        trackers = SimpleNamespace(close=lambda: None)
        log = SimpleNamespace(
            replacing=nullcontext,
            write_replaced=lambda _: None,
            write_rollouts=lambda *_: None,
            write_step=lambda *_: None,
            trackers=trackers,
            timed=lambda _, call: call,
        )
        monkeypatch.setattr(ppo_trainer.ray, "get", lambda references: references)
        monkeypatch.setattr(run_log, "attach", lambda *_: log)
        monkeypatch.setattr(evaluation, "run", lambda _, step: self._note(f"evaluation {step}"))
        monkeypatch.setattr(evaluation, "run_first", lambda *_: None)
        monkeypatch.setattr(evaluation, "run_last", lambda *_: None)
        for name in ("before_training", "after_training"):
            monkeypatch.setattr(step_metrics, name, lambda *_: None)

    def _note(self, what):
        self.seen.append((what, self.sampling))

    def _generate(self, **_):
        with self.changed:
            self.sampling += 1
            self.changed.notify_all()
            batch = int(self.trainer.samples_generator.stage.removeprefix("train "))
            assert self.changed.wait_for(lambda: self.trained >= batch - 1, 60)
        time.sleep(0.2)  # a loop that does not wait for it has sent the adapter by then
        self.sampling -= 1
        info = {"reward": torch.tensor([1.0]), "truncated": torch.zeros(1), "length_limit": torch.tensor([9.0])}
        return [SimpleNamespace(sequences=torch.tensor([[1]]), info=info)], None, 1, False

    def _train(self, _):
        with self.changed:
            if self.trained + 1 < self.trainer.args.max_steps:
                assert self.changed.wait_for(lambda: self.sampling, 60)
            self._note("train")
            self.trained += 1
            self.changed.notify_all()
        return {"grad_norms": [0.1, 0.1]}


def test_openrlhfs_loop_samples_only_while_it_trains(monkeypatch, tmp_path):
    loop = Loop(monkeypatch, tmp_path)
    loop.trainer.fit()
    step = [("sync", 0), ("save", 0)]
    assert loop.seen == [
        *[("train", 1), *step, ("evaluation 1", 0)],
        *[("train", 1), *step, ("evaluation 2", 0)],
        *[("train", 0), *step, ("evaluation 3", 0)],  # no step comes after it
    ]


def test_a_sample_keeps_its_branches():
    """Rollouts of an environment have rows of their own class beside those of the trainer."""
    branch = SimpleNamespace(sequences=torch.tensor([[1, 2]]), info={})
    sample = SimpleNamespace(sequences=torch.tensor([[3]]), branches=[branch], sampled_by="engine", kl=None)
    generator = Slow()
    generator.generate_samples = lambda **_: ([sample], 12.5, 3, False)
    first, second = (Batches(generator, lambda _: {}, episodes=1) for _ in range(2))
    first.sample_ahead(0, 2)
    first.policy = 4
    second.restore(saved(first.state()), SimpleNamespace)
    ([again], *rest) = second.take(0, 2)
    assert rest == [12.5, 3, False] and second.staleness() == 4
    assert again.sampled_by == "engine" and again.kl is None and torch.equal(again.sequences, sample.sequences)
    assert torch.equal(again.branches[0].sequences, branch.sequences)
