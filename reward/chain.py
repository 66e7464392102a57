"""Asks a chain of Gemini models one question within one deadline, with retries, fallbacks, and limits.

- 429: the model pauses for all questions as long as the server asks, then the next try.
- 429 that names a daily quota, or a quota of 0: the next model at once, and the breaker opens.
- 408, 5xx, no connection, no answer in time: the next try after the server's delay, or after an exponential delay with
  full jitter (Brooker, "Exponential Backoff And Jitter", AWS, 2015). The breaker counts these.
- a reply that is cut, or not of the schema (a score out of range): the next try, at once.
- blocked by a filter; 400 and other 4xx: the next model at once, since the same request gets the same answer.
- 403, 404: the next model at once; this one is not called for some minutes.
- 401, or 400 that names the key; a redirect, since all models share the address: no model is called for some minutes.

A call gets no slot while too many are under way or in the last window, the server has asked for a pause (429), or the
breaker is open. After `FAILURES_TO_OPEN` failures in a row no calls are made for a while, then exactly one, the probe.
Its success closes the breaker; its failure doubles the pause. The breaker also opens if a quota is spent: a 429 says
so, or all replies of a whole window are 429s. For a model that is missing, or without a valid key, it opens for longer.
"""

import asyncio
import logging
import random
import time
from collections import deque
from typing import NamedTuple

from pydantic import BaseModel

from reward.gemini import CallError, Client, Kind, Reply
from reward.settings import STAND_IN_KEY, ChainSettings, base_url

logger = logging.getLogger(__name__)

FIRST_DELAY, LONGEST_DELAY = 1.0, 20.0
# The smallest share of the deadline that a call needs: a later one would be cut off and paid for in vain.
LEAST_SHARE = 0.1
FAILURES_TO_OPEN = 5
# Shares of a window. The slack is for calls that reach the server late, and with them leave its window late.
SLACK, FIRST_OPEN, LONGEST_OPEN, SHUT, PAUSE = 0.03, 1 / 12, 1.0, 5.0, 1 / 6
# A call without an answer is evidence against its model only if it had this share of `call_timeout`.
FULL_SHARE = 0.9
_POLL_SECONDS = 0.05


class ChainError(Exception):
    """No model gave an answer. The message gives the reason for each model. `calls` and `tokens`: what was spent."""

    def __init__(self, message: str, calls: int = 0, tokens: int = 0) -> None:
        super().__init__(message)
        self.calls, self.tokens = calls, tokens


class Answer(NamedTuple):
    """A reply, the position in the chain of the model that gave it, and the calls and tokens of all tries."""

    reply: Reply
    position: int
    calls: int
    tokens: int


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


class Chain:
    """The models of `settings`, in their order, under limits that all questions share."""

    def __init__(self, settings: ChainSettings, client: Client) -> None:
        self.settings, self.client = settings, client
        self.gates = {model: Gate(model, settings) for model in settings.models}

    async def ask(
        self, prompt: str, system: str | None = None, schema: type[BaseModel] | None = None, passed: float = 0.0
    ) -> Answer:
        """Return the first good answer, of the form of the schema. Raise ChainError if the deadline comes before it.

        Args:
            passed: seconds of the deadline that are over.
        """
        return await _Question(self, (prompt, system, schema), passed).ask()


class _Question:
    def __init__(self, chain: Chain, question: tuple[str, str | None, type[BaseModel] | None], passed: float) -> None:
        self._chain, self._settings, self._question = chain, chain.settings, question
        self._end = time.monotonic() + self._settings.deadline - passed
        self._last_start = self._end - min(self._settings.call_timeout, LEAST_SHARE * self._settings.deadline)
        self._tries = dict.fromkeys(self._settings.models, self._settings.tries)
        self._reasons: dict[str, str] = {}
        self._calls = self._tokens = 0

    async def ask(self) -> Answer:
        """Go through the chain, and again while a model with tries left can answer before the deadline."""
        models = self._settings.models
        share = self._settings.deadline / (2 * len(models))  # that the first round leaves to each later model
        while True:
            waits = [self._end]
            for position, model in enumerate(models):
                outcome = await self._ask_model(model, (len(models) - 1 - position) * share)
                if isinstance(outcome, Reply):
                    return Answer(outcome, position, self._calls, self._tokens)
                waits.append(outcome)
            share, now = 0.0, time.monotonic()
            if max(now, min(waits)) >= self._last_start:
                raise self._failure()
            await asyncio.sleep(max(0.001, min(waits) - now))

    async def _ask_model(self, model: str, reserve: float) -> Reply | float:
        """Use the model's tries but for the last `reserve` seconds. Return its reply, or when to come back."""
        gate, give_up = self._chain.gates[model], self._last_start - reserve
        while self._tries[model]:
            is_probe = await gate.take(give_up)
            if isinstance(is_probe, NoSlot):
                self._reasons.setdefault(model, is_probe.why)
                return is_probe.until
            seconds = max(0.001, min(self._settings.call_timeout, self._end - reserve - time.monotonic()))
            self._tries[model] -= 1
            self._calls += 1
            try:
                reply = await self._chain.client.generate(self._settings, model, seconds, *self._question)
            except CallError as error:
                gate.give_back(is_probe, error, seconds)
                self._tokens += sum(error.tokens)
                if not await self._go_on(model, error, give_up):
                    return give_up
            else:
                gate.give_back(is_probe, None, seconds)
                self._tokens += sum(reply.tokens)
                return reply
        return self._end

    async def _go_on(self, model: str, error: CallError, give_up: float) -> bool:
        """Wait as a failure asks. Return False if that would leave no time for the next try."""
        self._reasons[model] = str(error)
        if error.kind is Kind.NO_KEY:
            for gate in self._chain.gates.values():
                gate.open(error, at_least=SHUT * self._settings.window)
            raise self._failure() from None
        if error.kind in (Kind.NEXT_MODEL, Kind.NO_MODEL, Kind.SPENT):
            self._tries[model] = 0
        if error.kind not in (Kind.FAILED, Kind.NO_ANSWER) or not self._tries[model]:
            return True
        delay = error.retry_after
        if delay is None:
            used = self._settings.tries - self._tries[model]
            delay = random.uniform(0, min(LONGEST_DELAY, FIRST_DELAY * 2 ** (used - 1)))
        if time.monotonic() + delay >= give_up:
            return False
        await asyncio.sleep(delay)
        return True

    def _failure(self) -> ChainError:
        reasons = "; ".join(f"{model}: {reason}" for model, reason in self._reasons.items())
        return ChainError(reasons or "no model was asked before the deadline", self._calls, self._tokens)


def connect(settings: ChainSettings, key: str | None, stand_in: str | None = None) -> Chain:
    """Return a chain that asks --judge_base_url or, without the key, the local stand-in at the address `stand_in`."""
    if not (key or stand_in):
        raise ValueError("there is no key: export GEMINI_API_KEY")
    return Chain(settings, Client(STAND_IN_KEY, stand_in) if stand_in else Client(key or "", base_url()))
