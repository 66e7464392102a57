"""Batches of a run whose groups may be unfinished at a sync."""

import hashlib
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo.batch import unfinished
from grpo.rollout import engine_calls
from grpo.rollout.stage import Stage
from grpo.training import sampling

from .drawn_steps import FakeRay, Run
from .test_ahead import any_settings, save_and_read

STEPS, BATCH, GROUP = 8, 3, 4
CHANGES = st.fixed_dictionaries(
    {
        "problems": st.integers(5, 14),
        "dynamic_filtering": st.booleans(),
        "partial_rollouts": st.integers(1, BATCH - 1),
        "partial_policies": st.integers(2, 4),
        "seed": st.integers(0, 99),
    }
)


class Engines(FakeRay):
    """Some groups always take longer than all others that are sampled with them."""

    def __init__(self, salt: int):
        self.salt = salt

    def wait(self, references, **_):
        first = min(references, key=self._draw_length)
        return [first], [reference for reference in references if reference != first]

    def _draw_length(self, reference) -> str:
        return hashlib.sha256(f"{self.salt} {reference[1]}".encode()).hexdigest()


def make_run(monkeypatch, salt: int, **changes) -> Run:
    run = Run(monkeypatch, order=0, pipeline=True, **changes)
    for module in (sampling, unfinished, engine_calls):
        monkeypatch.setattr(module, "ray", Engines(salt))
    return run


def list_trained(run: Run) -> list[list[tuple[str, float]]]:
    return [samples for samples, _ in run.rows]


@any_settings
@given(CHANGES, st.integers(0, 9))
def test_every_step_has_whole_groups_and_every_group_has_one_step(monkeypatch, changes, salt):
    run = make_run(monkeypatch, salt, **changes)
    counts = []
    for step in range(1, STEPS + 1):
        run.run_until(step)
        groups = run.sampler.unfinished.groups.values()
        assert len(groups) <= changes["partial_rollouts"], "the sync cut a group that the next step needs"
        assert all(group.policies <= changes["partial_policies"] for group in groups)
        counts.append(len(groups))
    assert any(counts), "nothing was unfinished"
    assert max(run.oldest) <= changes["partial_policies"]
    for samples in list_trained(run):
        assert Counter(prompt for prompt, _ in samples).total() == BATCH * GROUP
        parts = [samples[start : start + GROUP] for start in range(0, BATCH * GROUP, GROUP)]
        assert all(len({prompt for prompt, _ in part}) == 1 for part in parts)
    draws = [draw for samples in list_trained(run) for _, draw in samples]
    assert len(draws) == len(set(draws)), "a sample was trained on twice"


@any_settings
@given(CHANGES, st.integers(0, 9))
def test_no_group_is_lost_between_two_steps(monkeypatch, changes, salt):
    run = make_run(monkeypatch, salt, **changes | {"dynamic_filtering": False}).run_until(STEPS)
    mine = run.sampler.unfinished
    waiting = {sample.number for sample in [*run.batches.next_samples(), *mine.spare]}
    numbers = {group.number for group in mine.groups.values()} | waiting
    assert mine.begun - len(numbers) == STEPS * BATCH


@any_settings
@given(CHANGES, st.integers(0, 9), st.integers(1, STEPS - 1))
def test_a_resumed_run_has_the_batches_of_an_uninterrupted_one(monkeypatch, changes, salt, at):
    whole = make_run(monkeypatch, salt, **changes).run_until(STEPS)
    state = save_and_read(whole.states[at - 1])
    resumed = make_run(monkeypatch, salt, **changes).resume(state).run_until(STEPS)
    assert resumed.rows == whole.rows[at:]
    names = [name for group in state["unfinished"]["groups"] for name in group["known"]]
    assert resumed.known == {name: [{"of": name}] for name in names}
    assert len(names) == GROUP * len(state["unfinished"]["groups"])


def test_without_partial_rollouts_the_unfinished_groups_of_a_checkpoint_are_dropped(monkeypatch):
    whole = make_run(monkeypatch, 1, partial_rollouts=2).run_until(3)
    resumed = Run(monkeypatch, order=1, pipeline=True).resume(save_and_read(whole.states[1])).run_until(4)
    assert list_trained(resumed)[0] == list_trained(whole)[2]
    assert resumed.sampler.unfinished is None


def test_an_evaluation_between_two_steps_leaves_the_unfinished_groups_alone(monkeypatch):
    changes = {"partial_rollouts": 2, "seed": 4}
    whole = make_run(monkeypatch, 1, **changes).run_until(STEPS)
    run = make_run(monkeypatch, 1, **changes).run_until(3)
    groups = dict(run.sampler.unfinished.groups)
    stage = Stage(run.args, "eval 3", run.sampler.engine_calls)
    problems = [(["source"], [prompt], ["label"]) for prompt in ("1 of 2", "2 of 2")]
    samples, *_ = run.sampler._fill(stage, iter(problems), 2, sampling.SamplingOptions(GROUP, 1.0, 1))
    assert [sample.prompts for sample in samples] == [["1 of 2"]] * GROUP + [["2 of 2"]] * GROUP
    assert run.sampler.unfinished.groups == groups
    assert run.run_until(STEPS).rows == whole.rows


def make_sample(*policies: int) -> Any:
    mask = torch.tensor([[policy >= 0 for policy in policies]])
    return SimpleNamespace(policies=torch.tensor(policies), action_mask=mask)


def test_a_record_tells_which_policy_sampled_which_tokens():
    assert unfinished.find_policy_runs(make_sample(-1, 3, 3, -1, 3, 5)) == [[3, 3], [5, 1]]
    assert unfinished.find_policy_runs(make_sample(-1)) == []


def test_metrics_count_sampled_tokens():
    args: Any = SimpleNamespace(partial_rollouts=1)
    bare: Any = SimpleNamespace()
    assert unfinished.measure_staleness([make_sample(-1, 3, 3, 5), make_sample(-1, 7, -1)], 7, args) == {
        "staleness": (4 + 4 + 2 + 0) / 4, "staleness_max": 4.0, "rollouts_continued": 0.5,
    }  # fmt: skip
    assert unfinished.measure_staleness([bare], 7, args) == {}, "a batch of a run without partial rollouts"
    args.partial_rollouts = 0
    assert unfinished.measure_staleness([make_sample(3)], 7, args) == {}


@pytest.mark.parametrize(("partial_rollouts", "left"), [(1, [2, 3]), (0, [0, 1, 2, 3])])
def test_engines_and_trainer_are_compared_on_groups_of_one_policy(partial_rollouts, left):
    samples = [make_sample(-1, 7, 7), make_sample(-1, 6, 7), make_sample(-1, 7, 7), make_sample(-1, -1, 7)]
    args: Any = SimpleNamespace(partial_rollouts=partial_rollouts, n_samples_per_prompt=2)
    assert unfinished.select_one_policy(samples, 7, args) == [samples[index] for index in left]
