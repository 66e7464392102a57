"""The judge is away for an hour of a clock that advances only while somebody waits: no sample waits past its deadline.

Requests, limits, breakers and rewards are real.
"""

import pytest

from grpo.run.progress import step_line
from reward import chain, judge, limits
from tests.faults import assert_seen, note

from .faulty import Fault
from .harmony import PROMPT, RIGHT
from .test_limits import Clock

DEADLINE, HOUR = 240.0, 3600.0


class SlowClock(Clock):
    """Wakes a sleeper a second late at the earliest: fewer turns an hour."""

    def sleep(self, seconds: float) -> None:
        super().sleep(max(seconds, 1.0))


@pytest.mark.timeout(300)
def test_an_hour_without_the_judge_costs_each_sample_its_deadline_at_most(serve, load, monkeypatch) -> None:
    clock = SlowClock()
    for part in (limits, chain, judge):
        monkeypatch.setattr(part, "time", clock)
    is_away = [False]
    server = serve(faults=lambda number, model: Fault("status", 503) if is_away[0] else None)
    loaded = load(server, JUDGE_DEADLINE=f"{DEADLINE:.0f}", JUDGE_TRIES="3", JUDGE_CALL_TIMEOUT="90")

    def sample(number: int) -> tuple[dict, float]:
        began = clock.now
        result = loaded.reward_func([f"{PROMPT}{number} {RIGHT}"], [PROMPT], ["7"])
        return result, clock.now - began

    before, _ = sample(0)
    assert before["extra_logs"]["judge_failed"] == 0.0
    is_away[0], left, waited = True, clock.now, []
    while clock.now < left + HOUR:
        result, seconds = sample(len(waited) + 1)
        assert result["rewards"] == 1.0, "correctness alone decides"
        assert result["extra_logs"]["judge_failed"] == 1.0
        waited.append(seconds)
    assert max(waited) <= DEADLINE + 1.0
    calls = len(server.requests)
    assert calls < HOUR, "the breakers spare the judge"
    is_away[0] = False
    clock.now += 60 * limits.LONGEST_OPEN
    after, _ = sample(len(waited) + 1)
    assert after["extra_logs"]["judge_failed"] == 0.0
    row = {"step": 7, "reward": 1.0, "correct": 1.0, "judge_failed": 1.0}
    assert_seen("the judge is away for an hour", step_line(row, 10))
    note("the judge is away for an hour", max(waited))
