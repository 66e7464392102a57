"""Who may call a model now: limits and one circuit breaker for each model, for all threads of this process.

A call takes a slot before it is sent, says when it was sent, and gives the slot back after; a window of the quota is
counted from the sending. A call gets no slot while

- as many calls are under way as the model may have at once;
- the last window already holds as many requests or tokens as the quota has;
- the server has asked for a pause (429);
- the breaker is open: after `FAILURES_TO_OPEN` failures in a row no calls are made for a while, then exactly one, the
  probe. Its success closes the breaker; its failure doubles the pause. A spent quota also opens the breaker: a 429 says
  so, or all replies of a whole window are 429s.

A quota below the configured one shows in a 429. The cap on requests then falls to the number that the server accepted
in the last window. Somebody else may have used the quota, so it never falls below a quarter at once. It grows by a
twentieth after `WINDOWS_TO_GROW` windows without a 429, by two after as many again, and so on.
"""

import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from reward.gemini import Kind
from reward.settings import ChainSettings

logger = logging.getLogger(__name__)

FAILURES_TO_OPEN = 5
WINDOWS_TO_GROW = 5
# Shares of a window. The slack is for calls that reach the server late, and with them leave its window late.
SLACK, FIRST_OPEN, LONGEST_OPEN, SHUT, PAUSE = 0.03, 1 / 12, 1.0, 5.0, 1 / 6
_POLL_SECONDS = 0.05
_LOOK_AGAIN_SECONDS = 0.5


@dataclass(eq=False)
class Slot:
    """The right to make one call, and what its model's limits count of it.

    Attributes:
        tokens: of the prompt, an estimate until the server has counted them.
        started: when the call was sent (monotonic clock); until then, when the slot was taken.
    """

    model: str
    is_probe: bool
    tokens: int
    started: float
    is_sent: bool = False
    is_running: bool = True


@dataclass(frozen=True)
class NoSlot:
    """Why a call gets no slot. `until`: when to look again (monotonic clock); `is_shut`: not worth waiting for."""

    why: str
    until: float
    is_open: bool = False
    is_shut: bool = False


@dataclass
class ModelState:
    """What is known of one model. Times are of the monotonic clock.

    Attributes:
        calls: those under way, and those of the last window.
        cap: requests of a window after a 429; None is the configured quota.
        cap_floor: the least that the 429s of one burst make of the cap.
        growths: how often the cap has grown since.
        refused_since: the first of the 429s without an answer in between.
        openings: how often the breaker has opened since the last answer.
        open_until: until then no call is made, and then one; 0 if the breaker is closed.
        is_probed: whether that one call is under way.
    """

    calls: list[Slot] = field(default_factory=list)
    paused_until: float = 0.0
    cap: int | None = None
    cap_since: float = -math.inf
    cap_floor: int = 1
    growths: int = 0
    refused_since: float | None = None
    failures: int = 0
    openings: int = 0
    open_until: float = 0.0
    is_probed: bool = False
    is_shut: bool = False

    def close(self) -> None:
        """Close the breaker."""
        self.failures, self.openings, self.open_until, self.is_probed, self.is_shut = 0, 0, 0.0, False, False


class Limits:
    """The limits of `settings`, for each model, among all threads."""

    def __init__(self, settings: ChainSettings) -> None:
        self._settings = settings
        self.models = {model: ModelState() for model in settings.models}
        self._lock = threading.Lock()
        # Only one thread looks for a slot of a model; the others queue here.
        self._turns = {model: threading.Lock() for model in settings.models}

    def take(self, model: str, tokens: int, give_up: float) -> Slot | NoSlot:
        """Wait for a slot until `give_up` (monotonic clock); do not wait for an open breaker.

        Args:
            tokens: an estimate of the prompt's; :meth:`give_back` corrects it.
        """
        if not self._turns[model].acquire(timeout=max(0.0, give_up - time.monotonic())):
            return NoSlot("too many rollouts wait", max(give_up, time.monotonic()))
        try:
            while True:
                with self._lock:
                    slot = self._look(model, self.models[model], tokens)
                if isinstance(slot, Slot) or slot.is_open or slot.until > give_up:
                    return slot
                time.sleep(max(0.001, min(slot.until - time.monotonic(), _LOOK_AGAIN_SECONDS)))
        finally:
            self._turns[model].release()

    def _look(self, model: str, state: ModelState, tokens: int) -> Slot | NoSlot:
        now = time.monotonic()
        if state.open_until > now:
            return NoSlot("its breaker is open", state.open_until, is_open=True, is_shut=state.is_shut)
        is_probe = state.open_until > 0
        if is_probe and state.is_probed:
            return NoSlot("its breaker waits for a probe", now + _POLL_SECONDS, True, state.is_shut)
        refusal: NoSlot | None = NoSlot("the server asked for a pause", state.paused_until)
        if state.paused_until <= now:
            refusal = self._busy(state, tokens, self._grown_cap(state, now), now)
        if refusal:
            return replace(refusal, is_open=is_probe, is_shut=state.is_shut)  # nobody waits to send a probe
        state.is_probed = is_probe
        slot = Slot(model, is_probe, tokens, now)
        state.calls.append(slot)
        return slot

    def _busy(self, state: ModelState, tokens: int, cap: int, now: float) -> NoSlot | None:
        """Say which limit leaves no slot, and when it will; forget calls that no limit counts any more."""
        window = self._settings.window * (1 + SLACK)
        state.calls = [call for call in state.calls if call.is_running or call.started > now - window]
        if sum(call.is_running for call in state.calls) >= self._settings.concurrency:
            return NoSlot("too many calls are under way", now + _POLL_SECONDS)
        recent = [call for call in state.calls if call.started > now - window or not call.is_sent]
        recent.sort(key=lambda call: call.started)
        if len(recent) >= cap:
            first = recent[len(recent) - cap].started + window
            return NoSlot("the requests of this window are used up", max(first, now + _POLL_SECONDS))
        excess = sum(call.tokens for call in recent) + tokens - self._settings.tokens_per_window
        until: float | None = None
        for call in recent:  # a prompt above the limit is sent alone
            if excess <= 0:
                break
            excess, until = excess - call.tokens, call.started + window
        if until is None:
            return None
        return NoSlot("the tokens of this window are used up", max(until, now + _POLL_SECONDS))

    def _grown_cap(self, state: ModelState, now: float) -> int:
        limit = self._settings.requests_per_window
        if state.cap is not None and now - state.cap_since > WINDOWS_TO_GROW * self._settings.window:
            cap = state.cap + max(1, state.cap // 20) * 2**state.growths
            state.cap, state.cap_since, state.growths = cap if cap < limit else None, now, state.growths + 1
        return limit if state.cap is None else min(state.cap, limit)

    def mark_sent(self, slot: Slot) -> None:
        """Take note that a call has just gone to the server."""
        with self._lock:
            if not slot.is_sent:
                slot.is_sent, slot.started = True, time.monotonic()

    def give_back(
        self,
        slot: Slot,
        failure: Kind | None = None,
        *,
        why: str = "",
        tokens: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        """Take note of how a call went, as evidence about its model.

        Args:
            failure: None if it was answered. A call that the deadline has cut is no evidence.
            why: the call's error, for the log.
            tokens: of the prompt, as the server counted them.
            retry_after: seconds that the server asks to wait.
        """
        with self._lock:
            now, state = time.monotonic(), self.models[slot.model]
            if not slot.is_sent:
                slot.is_sent, slot.started = True, now
            slot.is_running, slot.tokens = False, slot.tokens if tokens is None else tokens
            if failure in (Kind.THROTTLED, Kind.SPENT):
                state.calls = [call for call in state.calls if call is not slot]  # it used nothing of the quota
                if failure is Kind.THROTTLED and self._is_spent(state, now):
                    failure = Kind.SPENT
            if failure in (None, Kind.BAD_REPLY, Kind.NEXT_MODEL):  # the model is there, whatever the answer is worth
                state.close()
                state.refused_since = None
            elif failure is Kind.THROTTLED:
                state.close()
                self._pause(state, now, retry_after)
            elif failure is Kind.SPENT:
                self._open(state, slot, now, why, retry_after or 0.0)
            elif failure in (Kind.FAILED, Kind.NO_ANSWER):
                self._count_failure(state, slot, now, why)
            elif failure is Kind.CUT and slot.is_probe:
                state.is_probed = False
            elif failure is Kind.NO_MODEL:
                self._shut([slot.model], now, why)
            elif failure in (Kind.NO_KEY, Kind.REDIRECTED):
                self._shut(self._settings.models, now, why)

    def _is_spent(self, state: ModelState, now: float) -> bool:
        """Say whether this 429 ends a window in which every reply was a 429 and no call is under way."""
        if state.refused_since is None:
            state.refused_since = now
        return now - state.refused_since >= self._settings.window and not any(call.is_running for call in state.calls)

    def _pause(self, state: ModelState, now: float, retry_after: float | None) -> None:
        window = self._settings.window
        pause = PAUSE * window if retry_after is None else retry_after
        accepted = sum(call.started > now - window or not call.is_sent for call in state.calls)
        cap = state.cap or self._settings.requests_per_window
        # A burst of 429s is one sign.
        if now - state.cap_since > window / 2:
            state.cap_floor = cap // 4
        state.cap, state.cap_since, state.growths = max(1, state.cap_floor, min(cap, accepted)), now, 0
        state.paused_until = max(state.paused_until, now + pause + SLACK * window)

    def _shut(self, models: Sequence[str], now: float, why: str) -> None:
        if not all(self.models[model].is_shut for model in models):
            logger.error("models that cannot be used are left out: %s: %s", ", ".join(models), why)
        for model in models:
            state = self.models[model]
            state.open_until, state.is_probed, state.is_shut = now + SHUT * self._settings.window, False, True

    def _count_failure(self, state: ModelState, slot: Slot, now: float, why: str) -> None:
        if state.open_until and not slot.is_probe:
            return  # it was on its way when the breaker opened
        state.failures += 1
        if slot.is_probe or state.failures >= FAILURES_TO_OPEN:
            self._open(state, slot, now, why)

    def _open(self, state: ModelState, slot: Slot, now: float, why: str, at_least: float = 0.0) -> None:
        """Open the breaker, each time for longer, until a probe is answered."""
        if state.open_until and not slot.is_probe:
            return  # it was on its way when the breaker opened
        window = self._settings.window
        seconds = max(at_least, min(LONGEST_OPEN * window, FIRST_OPEN * window * 2 ** min(10, state.openings)))
        state.openings += 1
        state.open_until, state.is_probed = now + seconds, False
        logger.warning("%s fails and gets one call after %.3g s: %s", slot.model, seconds, why)
