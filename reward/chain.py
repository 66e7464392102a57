"""Asks a chain of Gemini models one question within one deadline, with retries, fallbacks, and limits.

- 429: the model pauses for all questions as long as the server asks, then the next try.
- 429 that names a daily quota, or a quota of 0: the next model at once, and the breaker opens.
- 408, 5xx, no connection, no answer in time: the next try after the server's delay, or after an exponential delay with
  full jitter (Brooker, "Exponential Backoff And Jitter", AWS, 2015). The breaker counts these.
- a reply that is cut, or not of the schema (a score out of range): the next try, at once.
- blocked by a filter; 400 and other 4xx: the next model at once, since the same request gets the same answer.
- 403, 404: the next model at once; this one is not called for some minutes.
- 401, or 400 that names the key; a redirect, since all models share the address: no model is called for some minutes.
"""

import asyncio
import random
import time
from typing import NamedTuple

from pydantic import BaseModel

from reward.gemini import CallError, Client, Kind, Reply
from reward.limits import SHUT, Gate, NoSlot
from reward.settings import STAND_IN_KEY, ChainSettings, base_url

FIRST_DELAY, LONGEST_DELAY = 1.0, 20.0
# The smallest share of the deadline that a call needs: a later one would be cut off and paid for in vain.
LEAST_SHARE = 0.1


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
