"""Limits and breakers among threads."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from reward import limits
from reward.gemini import Kind
from reward.limits import Limits, NoSlot, Slot

from .chains import make_chain_settings

MODEL = "model"


class Clock:
    """The clock of the limits, which advances only when a caller sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(limits, "time", clock)
    return clock


def make(**settings: object) -> Limits:
    return Limits(make_chain_settings(MODEL, "other", **({"window": 10.0, "call_timeout": 5.0} | settings)))


def take_now(gate: Limits, tokens: int = 1, model: str = MODEL) -> Slot | NoSlot:
    return gate.take(model, tokens, limits.time.monotonic())


def take(gate: Limits, tokens: int = 1, model: str = MODEL) -> Slot:
    slot = take_now(gate, tokens, model)
    assert isinstance(slot, Slot), slot
    return slot


def test_requests_of_a_window(clock):
    gate = make(requests_per_window=3)
    for _ in range(3):
        gate.give_back(take(gate))
    refusal = take_now(gate)
    assert isinstance(refusal, NoSlot) and "requests" in refusal.why
    assert refusal.until - clock.now == pytest.approx(10 * (1 + limits.SLACK))
    take(gate, model="other")


def test_tokens_of_a_window_as_the_server_counted_them():
    gate = make(tokens_per_window=100)
    gate.give_back(take(gate, 90), tokens=20)
    gate.give_back(take(gate, 70), tokens=70)
    refusal = take_now(gate, 11)
    assert isinstance(refusal, NoSlot) and "tokens" in refusal.why
    take(gate, 10)


def test_a_prompt_above_the_limit_is_sent_alone():
    gate = make(tokens_per_window=100)
    take(gate, 1000)
    assert isinstance(take_now(gate), NoSlot)


def test_a_window_moves_on(clock):
    gate = make(requests_per_window=2, window=0.3)
    started = clock.now
    for _ in range(6):
        slot = gate.take(MODEL, 1, started + 30)
        assert isinstance(slot, Slot)
        gate.mark_sent(slot)
        gate.give_back(slot)
    assert clock.now - started >= 2 * 0.3


def test_calls_at_once(clock):
    gate = make(concurrency=2)
    slots = [take(gate) for _ in range(2)]
    refusal = take_now(gate)
    assert isinstance(refusal, NoSlot) and "under way" in refusal.why
    gate.give_back(slots[0], Kind.CUT)
    take(gate)


def test_cap_falls_to_the_accepted_number_and_grows_again(clock):
    gate = make(requests_per_window=20, window=0.5)
    slots = [take(gate) for _ in range(10)]
    for slot in slots:
        gate.mark_sent(slot)
    for slot in slots[:6]:
        gate.give_back(slot)
    for slot in slots[6:]:
        gate.give_back(slot, Kind.THROTTLED, retry_after=0.0)

    def read_cap():
        return gate.models[MODEL].cap

    assert read_cap() == 6
    clock.sleep(limits.WINDOWS_TO_GROW * 0.5 + 0.1)
    gate.give_back(take(gate))
    assert read_cap() == 7
    clock.sleep(limits.WINDOWS_TO_GROW * 0.5 + 0.1)
    gate.give_back(take(gate))
    assert read_cap() == 9


def test_first_call_429_does_not_set_the_quota(clock):
    gate = make(requests_per_window=20)
    slots = [take(gate) for _ in range(2)]
    for slot in slots:
        gate.give_back(slot, Kind.THROTTLED, retry_after=0.0)
    clock.sleep(limits.SLACK * 10)
    assert [isinstance(take_now(gate), Slot) for _ in range(6)] == [True] * 5 + [False], "a quarter of 20"


def test_a_pause_is_for_the_model_and_all_threads(clock):
    gate = make()
    gate.give_back(take(gate), Kind.THROTTLED, retry_after=3.0)
    refusal = take_now(gate)
    assert isinstance(refusal, NoSlot) and not refusal.is_open
    assert refusal.until - clock.now == pytest.approx(3.0 + limits.SLACK * 10)
    take(gate, model="other")


def test_the_breaker_lets_exactly_one_probe_through(clock):
    gate = make(window=1.2)  # opens for a twelfth of it, then for twice as long
    for _ in range(limits.FAILURES_TO_OPEN):
        gate.give_back(take(gate), Kind.FAILED)
    refusal = take_now(gate)
    assert isinstance(refusal, NoSlot) and refusal.is_open
    clock.sleep(0.15)
    with ThreadPoolExecutor(20) as pool:
        slots = list(pool.map(lambda _: take_now(gate), range(20)))
    [probe] = [slot for slot in slots if isinstance(slot, Slot)]
    assert probe.is_probe
    gate.give_back(probe, Kind.FAILED)
    refusal = take_now(gate)
    assert isinstance(refusal, NoSlot) and refusal.until - clock.now == pytest.approx(0.2)
    clock.sleep(0.25)
    gate.give_back(take(gate))
    assert not take(gate).is_probe


def test_a_quota_that_is_spent_opens_the_breaker(clock):
    gate = make(window=1.2)
    slots = [take(gate) for _ in range(3)]
    gate.give_back(slots[0])
    for slot in slots[1:]:
        gate.give_back(slot, Kind.SPENT)
    refusal = take_now(gate)
    assert isinstance(refusal, NoSlot) and refusal.is_open and refusal.until - clock.now == pytest.approx(0.1)
    clock.sleep(0.15)
    gate.give_back(take(gate), Kind.SPENT, retry_after=5.0)
    refusal = take_now(gate)
    assert isinstance(refusal, NoSlot) and refusal.is_open and refusal.until - clock.now == pytest.approx(5.0)


def test_only_429s_for_a_whole_window_open_the_breaker(clock):
    gate = make(window=0.5)
    started = clock.now
    while not (isinstance(slot := gate.take(MODEL, 1, started + 30), NoSlot) and slot.is_open):
        assert isinstance(slot, Slot)
        gate.give_back(slot, Kind.THROTTLED, retry_after=0.01)
    assert clock.now - started >= 0.5
    clock.sleep(max(0.0, slot.until - clock.now) + 0.01)
    probe = take(gate)
    assert probe.is_probe
    gate.give_back(probe, Kind.THROTTLED, retry_after=0.01)
    refusal = take_now(gate)
    assert isinstance(refusal, NoSlot) and refusal.is_open, "a 429 does not close it"


def test_429s_among_answers_do_not_open_the_breaker(clock):
    gate, started = make(window=0.4), clock.now
    while clock.now < started + 1.0:
        for failure in (Kind.THROTTLED, None):
            slot = gate.take(MODEL, 1, started + 30)
            assert isinstance(slot, Slot)
            gate.give_back(slot, failure, retry_after=0.01)


def test_probing_for_a_day_does_not_overflow(clock):
    gate = make(window=0.01)
    gate.give_back(take(gate), Kind.SPENT)
    gate.models[MODEL].openings = 2000
    clock.sleep(0.01)
    gate.give_back(take(gate), Kind.SPENT)


def test_cut_call_is_no_evidence(clock):
    gate = make(window=1.2)
    for _ in range(2 * limits.FAILURES_TO_OPEN):
        gate.give_back(take(gate), Kind.CUT)
    for _ in range(limits.FAILURES_TO_OPEN):
        gate.give_back(take(gate), Kind.FAILED)
    clock.sleep(0.15)
    gate.give_back(take(gate), Kind.CUT)
    assert take(gate).is_probe, "the next probe follows at once"


def test_failures_of_calls_in_flight_do_not_prolong_the_breaker(clock):
    gate = make()
    slots = [take(gate) for _ in range(20)]
    for slot in slots:
        gate.give_back(slot, Kind.FAILED)
    refusal = take_now(gate)
    assert isinstance(refusal, NoSlot) and refusal.until - clock.now == pytest.approx(10 / 12)
