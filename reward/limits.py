"""Who may call a model now: the limits and the circuit breaker of one model, in one event loop.

A call gets no slot while too many are under way or in the last window, the server has asked for a pause (429), or the
breaker is open. After `FAILURES_TO_OPEN` failures in a row no calls are made for a while, then exactly one, the probe.
Its success closes the breaker; its failure doubles the pause. The breaker also opens if a quota is spent: a 429 says
so, or all replies of a whole window are 429s. For a model that is missing, or without a valid key, it opens for longer.
"""

import asyncio
import logging
import time
from collections import deque
from typing import NamedTuple

from reward.gemini import CallError, Kind
from reward.settings import ChainSettings

logger = logging.getLogger(__name__)

FAILURES_TO_OPEN = 5
# Shares of a window. The slack is for calls that reach the server late, and with them leave its window late.
SLACK, FIRST_OPEN, LONGEST_OPEN, SHUT, PAUSE = 0.03, 1 / 12, 1.0, 5.0, 1 / 6
# A call without an answer is evidence against its model only if it had this share of `call_timeout`.
FULL_SHARE = 0.9
_POLL_SECONDS = 0.05


class NoSlot(NamedTuple):
    """Why a call gets no slot, and when to look again (monotonic clock). Nobody waits for an open breaker."""

    why: str
    until: float
    is_open: bool = False


class Gate:
    """The limits of a model. Times are of the monotonic clock."""

    def __init__(self, model: str, settings: ChainSettings) -> None:
        self.model, self._settings = model, settings
        self._turn = asyncio.Lock()  # only one question looks for a slot; the others queue
        self._sent: deque[float] = deque(maxlen=settings.requests_per_window)
        self._running = self._failures = self._openings = 0
        self._paused_until = self._open_until = 0.0  # the latter is 0 while the breaker is closed
        self._is_probing = False
        self._refused_since: float | None = None  # the first of the 429s without an answer in between

    async def take(self, give_up: float) -> NoSlot | bool:
        """Wait for a slot until `give_up`, and return whether it is the probe's. It is given back after the call."""
        try:
            async with asyncio.timeout(give_up - time.monotonic()), self._turn:
                while refusal := self._look(time.monotonic()):
                    if refusal.is_open or refusal.until > give_up:
                        return refusal
                    await asyncio.sleep(max(0.001, min(refusal.until - time.monotonic(), _POLL_SECONDS)))
                self._is_probing = self._open_until > 0
                self._sent.append(time.monotonic())
                self._running += 1
                return self._is_probing
        except TimeoutError:
            return NoSlot("too many rollouts wait", give_up)

    def _look(self, now: float) -> NoSlot | None:
        free = self._sent[0] + self._settings.window * (1 + SLACK) if len(self._sent) == self._sent.maxlen else now
        if self._open_until > now:
            return NoSlot("its breaker is open", self._open_until, True)
        if self._is_probing:
            return NoSlot("its breaker waits for a probe", now + _POLL_SECONDS, True)
        if self._paused_until > now:
            return NoSlot("the server asked for a pause", self._paused_until)
        if self._running >= self._settings.concurrency:
            return NoSlot("too many calls are under way", now + _POLL_SECONDS)
        return NoSlot("the requests of this window are used up", free) if free > now else None

    def give_back(self, is_probe: bool, error: CallError | None, seconds: float) -> None:
        """Take note of how a call of at most `seconds` went; None is an answer."""
        self._running -= 1
        self._is_probing &= not is_probe
        now, window, kind = time.monotonic(), self._settings.window, error.kind if error else None
        if kind is Kind.THROTTLED:
            self._refused_since = self._refused_since or now
            kind = Kind.SPENT if now - self._refused_since >= window and not self._running else kind
        if error is None or kind in (Kind.BAD_REPLY, Kind.NEXT_MODEL, Kind.THROTTLED):  # the model is there
            self._failures, self._openings, self._open_until = 0, 0, 0.0
            self._refused_since = self._refused_since if kind is Kind.THROTTLED else None
        if error is None:
            return
        if kind is Kind.THROTTLED:
            pause = PAUSE * window if error.retry_after is None else error.retry_after
            self._paused_until = max(self._paused_until, now + pause + SLACK * window)
        elif kind in (Kind.SPENT, Kind.NO_MODEL, Kind.NO_KEY):
            self.open(error, is_probe, (error.retry_after or 0.0) if kind is Kind.SPENT else SHUT * window)
        elif kind is Kind.FAILED or (kind is Kind.NO_ANSWER and seconds >= FULL_SHARE * self._settings.call_timeout):
            self._failures += 1
            if is_probe or self._failures >= FAILURES_TO_OPEN:
                self.open(error, is_probe)

    def open(self, error: CallError, is_probe: bool = False, at_least: float = 0.0) -> None:
        """Open the breaker, each time for longer, until a probe is answered."""
        if self._open_until and not is_probe:
            return  # the call was on its way when the breaker opened
        window = self._settings.window
        seconds = max(at_least, min(LONGEST_OPEN * window, FIRST_OPEN * window * 2 ** min(10, self._openings)))
        self._openings, self._open_until = self._openings + 1, time.monotonic() + seconds
        logger.warning("%s fails and gets one call after %.3g s: %s", self.model, seconds, error)
