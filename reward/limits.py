"""Who may call a model now: the limits and the circuit breaker of one model, in one event loop.

A call takes a slot before it is sent and gives it back after. It gets no slot while

- as many calls are under way as the model may have at once, or the last window holds as many as the quota has;
- the server has asked for a pause (429);
- the breaker is open: after `FAILURES_TO_OPEN` failures in a row no calls are made for a while, then exactly one, the
  probe. Its success closes the breaker; its failure doubles the pause. A spent quota also opens the breaker: a 429 says
  so, or all replies of a whole window are 429s.
"""

import asyncio
import logging
import math
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
        self._is_probing = self._is_shut = False
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
            return NoSlot("its breaker is open", math.inf if self._is_shut else self._open_until, True)
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
        if error is None or kind in (Kind.BAD_REPLY, Kind.NEXT_MODEL):  # the model is there, whatever it says
            self._close()
            self._refused_since = None
        elif kind in (Kind.NO_MODEL, Kind.NO_KEY):
            self.shut(error)
        elif kind is Kind.THROTTLED and not self._is_refusing(now):
            self._close()
            pause = PAUSE * window if error.retry_after is None else error.retry_after
            self._paused_until = max(self._paused_until, now + pause + SLACK * window)
        elif kind is not Kind.NO_ANSWER or seconds >= FULL_SHARE * self._settings.call_timeout:
            self._failures += 1
            is_spent = kind in (Kind.SPENT, Kind.THROTTLED)
            is_late = self._open_until > 0 and not is_probe  # it was on its way when the breaker opened
            if not is_late and (is_probe or is_spent or self._failures >= FAILURES_TO_OPEN):
                self._open(now, error, (error.retry_after or 0.0) if is_spent else 0.0)

    def _is_refusing(self, now: float) -> bool:
        """Say whether this 429 ends a window in which every reply was a 429 and no call is under way."""
        self._refused_since = self._refused_since or now
        return now - self._refused_since >= self._settings.window and not self._running

    def _close(self) -> None:
        self._failures, self._openings, self._open_until, self._is_shut = 0, 0, 0.0, False

    def _open(self, now: float, error: CallError, at_least: float) -> None:
        """Open the breaker, each time for longer, until a probe is answered."""
        window = self._settings.window
        seconds = max(at_least, min(LONGEST_OPEN * window, FIRST_OPEN * window * 2 ** min(10, self._openings)))
        self._openings, self._open_until = self._openings + 1, now + seconds
        logger.warning("%s fails and gets one call after %.3g s: %s", self.model, seconds, error)

    def shut(self, error: CallError) -> None:
        """Leave the model out for some minutes: it cannot be used."""
        if not self._is_shut:
            logger.error("%s cannot be used and is left out: %s", self.model, error)
        self._open_until, self._is_shut = time.monotonic() + SHUT * self._settings.window, True
