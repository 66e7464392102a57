"""Which groups a step draws and trains on: the same ones whatever the engines' order, and after a resume."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo.train.rollout_filters import Step

from .drawn_steps import Run, get_difficulty

STEPS = 8
CHANGES = st.fixed_dictionaries(
    {
        "problems": st.integers(5, 14),
        "dynamic_filtering": st.booleans(),
        "dynamic_filtering_reward_range": st.sampled_from([[0, 1], [0.3, 0.7], [0.9, 1]]),
        "dynamic_filtering_batches": st.integers(1, 4),
        "seed": st.integers(0, 99),
    }
)
any_settings = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # the fixture only replaces the module's ray, anew in each run


@any_settings
@given(CHANGES, st.integers(1, STEPS - 1))
def test_a_run_has_the_same_groups_in_any_order_of_the_engines_and_after_a_resume(monkeypatch, changes, at):
    whole = Run(monkeypatch, order=1, **changes).run_until(STEPS)
    assert Run(monkeypatch, order=2, **changes).run_until(STEPS).rows == whole.rows
    if at < len(whole.rows):
        resumed = Run(monkeypatch, order=3, **changes).resume(whole.states[at - 1]).run_until(STEPS)
        assert resumed.rows == whole.rows[at:]


@any_settings
@given(CHANGES)
def test_every_batch_is_full_and_within_the_window_and_the_bound(monkeypatch, changes):
    run = Run(monkeypatch, order=1, **changes).run_until(STEPS)
    assert len(run.rows) == STEPS
    low, high = run.args.dynamic_filtering_reward_range
    for samples, metrics in run.rows:
        groups = [samples[first : first + 4] for first in range(0, len(samples), 4)]
        assert len(groups) == 3 and all(len({prompt for prompt, _ in group}) == 1 for group in groups)
        if not run.args.dynamic_filtering:
            continue
        rates = [sum(draw < get_difficulty(prompt) for prompt, draw in group) / 4 for group in groups]
        assert sum(not low < rate < high for rate in rates) == metrics["groups_filled"]
        assert 3 <= metrics["groups_drawn"] <= 3 * run.args.dynamic_filtering_batches
        outside = metrics["groups_too_hard"] + metrics["groups_too_easy"]
        assert metrics["dynamic_filtering_pass_rate"] == pytest.approx(100 * (1 - outside))
        if metrics["groups_filled"]:
            assert metrics["groups_drawn"] == 3 * run.args.dynamic_filtering_batches


def test_a_step_that_may_draw_no_more_takes_the_groups_nearest_to_the_window(monkeypatch):
    """Nothing is between 0.9 and 1, so all 12 draws are rejected."""
    run = Run(monkeypatch, order=1, dynamic_filtering_reward_range=[0.9, 1]).run_until(1)
    (samples, metrics), rates = run.rows[0], dict(run.prefetch.current.groups.drawn)
    assert (
        metrics["groups_filled"] == 3 and metrics["groups_drawn"] == 12 and metrics["dynamic_filtering_pass_rate"] == 0
    )
    taken = [rates[prompt] for prompt, _ in samples[::4]]
    distances = sorted(max(0.9 - rate, rate - 1) for rate in rates.values())
    assert sorted(max(0.9 - rate, rate - 1) for rate in taken) == distances[:3]
    assert metrics["score_drawn"] == pytest.approx(sum(rates.values()) / 12)


def test_groups_that_wait_for_the_next_episode_are_trained_once(monkeypatch):
    """Two of five problems never have a spread, so each episode has at most three groups for the batches of three."""
    run = Run(monkeypatch, order=1, problems=5)
    carried, finish = [], Step.finish
    monkeypatch.setattr(Step, "finish", lambda step, prompts: note(finish(step, prompts), step))

    def note(drawn, step):
        carried.append(drawn.is_over and len(step.kept))
        assert bool(drawn.rollouts) != drawn.is_over
        return drawn

    run.run_until(6)
    assert any(carried), "an episode has ended with accepted groups"
    trained = [draw for samples, _ in run.rows for _, draw in samples]
    assert len(trained) == len(set(trained)) == 6 * 12
