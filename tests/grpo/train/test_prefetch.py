"""Batches that are sampled a step ahead: the same ones in any order of the engines, and after a resume."""

import collections
import tempfile
import threading
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo.checkpoint import trainer_state
from grpo.train.prefetch import Prefetch
from grpo.train.rollout_filters import Drawn, Step
from reward import judge_actor
from tests.supervised import wait_until

from .drawn_steps import Run

STEPS = 6
CHANGES = st.fixed_dictionaries(
    {
        "problems": st.integers(5, 14),
        "dynamic_filtering": st.booleans(),
        "num_episodes": st.sampled_from([2, 200]),
        "seed": st.integers(0, 99),
    }
)
any_settings = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def save_and_read(state: dict) -> dict:
    """What a checkpoint gives back, which holds tensors and plain values only."""
    with tempfile.TemporaryDirectory() as folder:
        trainer_state.write_file(Path(folder, "state.safetensors"), state)
        return trainer_state.read_file(Path(folder, "state.safetensors"))


@any_settings
@given(CHANGES, st.integers(1, STEPS - 1))
def test_a_resumed_run_has_the_batches_of_an_uninterrupted_one(monkeypatch, changes, at):
    whole = Run(monkeypatch, order=1, pipeline=True, **changes).run_until(STEPS)
    assert Run(monkeypatch, order=2, pipeline=True, **changes).run_until(STEPS).rows == whole.rows
    if at < len(whole.rows):
        resumed = (
            Run(monkeypatch, order=3, pipeline=True, **changes)
            .resume(save_and_read(whole.states[at - 1]))
            .run_until(STEPS)
        )
        assert resumed.rows == whole.rows[at:]


@any_settings
@given(CHANGES)
def test_only_the_policy_that_samples_differs_from_steps_in_turn(monkeypatch, changes):
    """What a step draws follows from run, step, and prompt, unless it depends on what earlier steps solved."""
    ahead, in_turn = (Run(monkeypatch, order=1, pipeline=on, **changes).run_until(STEPS) for on in (True, False))
    assert [samples for samples, _ in ahead.rows] == [samples for samples, _ in in_turn.rows]
    assert [metrics["staleness"] for _, metrics in in_turn.rows] == [0] * len(in_turn.rows)
    assert [metrics["staleness"] for _, metrics in ahead.rows] == [0, *[1] * (len(ahead.rows) - 1)]


def test_without_pipeline_a_saved_batch_comes_first(monkeypatch):
    whole = Run(monkeypatch, order=1, pipeline=True).run_until(3)
    resumed = Run(monkeypatch, order=1).resume(save_and_read(whole.states[1])).run_until(4)
    assert resumed.rows[0] == whole.rows[2]
    assert [metrics["staleness"] for _, metrics in resumed.rows] == [1, 0]


def test_the_last_step_samples_nothing_ahead(monkeypatch):
    run = Run(monkeypatch, order=1, pipeline=True, max_steps=3).run_until(3)
    assert [state.get("next_batch", {}).get("step") for state in run.states] == [2, 3, None]


class Judged:
    """A sampler whose batches are sampled and get their rewards when they are told to.

    Attributes:
        begun: the steps whose sampling was begun.
        may_be_sampled, may_be_rewarded: whether a batch may go on, by its step.
        limit: of the steps that begin now.
    """

    def __init__(self, error: Exception | None = None, **changes) -> None:
        values = {"num_episodes": 1, "seed": 0, "dynamic_filtering": False, "pipeline": True}
        self.args, self.limit = SimpleNamespace(**values | changes), 9
        self.begun, self.error = [], error
        self.may_be_sampled, self.may_be_rewarded = (collections.defaultdict(threading.Event) for _ in range(2))

    def begin_step(self, number: int, sampled: threading.Event | None) -> Step:
        step = Step(self.args, number, max_new_tokens=self.limit)
        step.sampled = sampled
        return step

    def sample_step(self, step: Step) -> Drawn:
        number = int(step.name.removeprefix("train "))
        self.begun.append(number)
        assert self.may_be_sampled[number].wait(400)
        if step.sampled is not None:
            step.sampled.set()
        assert self.may_be_rewarded[number].wait(400)
        if self.error:
            raise self.error
        return Drawn([SimpleNamespace(of=number, limit=step.max_new_tokens)], 1, False)


def make_batches(generator: Judged) -> Prefetch:
    log = SimpleNamespace(phase=lambda _: nullcontext(), note_seconds=lambda *_: None)
    return Prefetch(generator.args, generator, log)


def run_in_thread(function, *arguments) -> Future:
    result = Future()

    def run():
        try:
            result.set_result(function(*arguments))
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result


def test_the_next_batch_is_begun_while_rewards_are_missing():
    generator = Judged()
    batches = make_batches(generator)
    asked = run_in_thread(batches.start_next_batch, 0, 1)
    wait_until(lambda: generator.begun, "the first batch was not begun")
    assert not asked.done() and generator.begun == [1], "the engines still sample the first one"
    generator.may_be_sampled[1].set()
    asked.result(60)
    wait_until(lambda: generator.begun == [1, 2], "the second batch was not begun")
    taken, waited = run_in_thread(batches.take, 0, 1), run_in_thread(batches.wait_until_sampled)
    seen = run_in_thread(batches.get_next_rollouts)  # by the parity gate
    assert not taken.done() and not waited.done()
    generator.may_be_sampled[2].set()
    waited.result(60)  # the sync may come, with all rewards missing
    assert not taken.done()
    assert not seen.done()
    generator.may_be_rewarded[1].set()
    assert taken.result(60) == Drawn([SimpleNamespace(of=1, limit=9)], 1, False)
    assert seen.result(60) == [SimpleNamespace(of=1, limit=9)]
    generator.limit = 12  # batch 2 keeps the limit of its start
    batches.start_next_batch(0, 2)
    wait_until(lambda: generator.begun[2:] == [3], "the third batch was not begun")
    taken = run_in_thread(batches.take, 0, 2)
    generator.may_be_rewarded[2].set()
    assert taken.result(60) == Drawn([SimpleNamespace(of=2, limit=9)], 1, False)


def test_the_policy_of_a_batch_is_the_one_of_the_last_sync():
    """Batch 3 is begun before batch 2 has its rewards, and by the policy after step 1 as without a judge."""
    policies = []
    for is_late in (False, True):
        generator = Judged()
        batches = make_batches(generator)
        for step in range(1, 5):
            generator.may_be_sampled[step].set()
            if not is_late:
                generator.may_be_rewarded[step].set()
        for step in range(1, 4):
            batches.start_next_batch(0, step)
            taken = run_in_thread(batches.take, 0, step)
            generator.may_be_rewarded[step].set()
            taken.result(60)
            policies.append((step, batches.current.policy, batches.compute_staleness()))
            batches.policy += 1
            batches.wait_until_sampled()
    assert policies == 2 * [(1, 0, 0), (2, 0, 1), (3, 1, 1)]


@pytest.mark.parametrize("dies", ["reward", "judge"])
def test_what_goes_wrong_while_rewards_are_missing_is_raised_in_its_step_and_not_saved(monkeypatch, dies):
    def require():
        raise RuntimeError("the judge's process has died")

    if dies == "judge":
        monkeypatch.setattr(judge_actor, "require", require)
    generator = Judged(RuntimeError("the reward's service has died") if dies == "reward" else None)
    batches = make_batches(generator)
    generator.may_be_sampled[1].set()
    batches.start_next_batch(0, 1)
    generator.may_be_sampled[2].set()
    for step in (1, 2):
        generator.may_be_rewarded[step].set()
    for call in (lambda: batches.take(0, 1), lambda: batches.take(0, 1), batches.get_state()):
        with pytest.raises(RuntimeError, match="has died"):
            call()


def test_what_goes_wrong_while_sampling_is_raised_before_the_sync():
    generator = Judged(ValueError("an engine died"), dynamic_filtering=True)
    generator.may_be_sampled[1].set()
    generator.may_be_rewarded[1].set()
    batches = make_batches(generator)
    for call in (lambda: batches.start_next_batch(0, 1), batches.wait_until_sampled):
        with pytest.raises(ValueError, match="an engine died"):
            call()


def test_a_sample_keeps_its_branches():
    """Rollouts of an environment have rows of their own class beside those of the trainer."""
    branch = SimpleNamespace(sequences=torch.tensor([[1, 2]]), info={})
    sample = SimpleNamespace(sequences=torch.tensor([[3]]), branches=[branch], sampled_by="engine", kl=None)
    generator = Judged()
    generator.sample_step = lambda _: Drawn([sample], 3, False)
    first, second = make_batches(generator), make_batches(generator)
    first.start_next_batch(0, 1)
    first.take(0, 1)
    first.policy = 4
    second.restore(save_and_read(first.get_state()()))
    drawn = second.take(0, 2)
    [again] = drawn.rollouts
    assert replace(drawn, rollouts=[]) == Drawn([], 3, False) and second.compute_staleness() == 4
    assert again.sampled_by == "engine" and again.kl is None and torch.equal(again.sequences, sample.sequences)
    assert torch.equal(again.branches[0].sequences, branch.sequences)
