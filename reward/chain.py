"""Asks a chain of Gemini models one question within one deadline, with retries, fallbacks, and limits.

How each kind of failure is handled:

- 429: the model pauses for all threads as long as the server asks, then the next try.
- 429 that names a daily quota, or a quota of 0: the next model at once, and the breaker opens.
- 408, 5xx, no connection, no answer in time: the next try after the server's delay, or after an exponential delay with
  full jitter (Brooker, "Exponential Backoff And Jitter", AWS, 2015). The breaker counts these. It ignores a call
  without an answer that had less than `call_timeout` before the deadline.
- a reply cut by the token limit, invalid JSON, or JSON that breaks the schema (a score out of range): the next try, at
  once.
- blocked by a filter; 400 and other 4xx: the next model at once, since the same request gets the same answer.
- 403, 404: the next model at once; this one is not called for some minutes. Logged once as an error.
- 401, or 400 that names the key: no model is asked any more. Logged once as an error.
- a redirect: the same, since all models share the address, and it is wrong or captured.

tenacity retries one call. Here the tries of several models alternate, share one deadline, and wait for shared
limits, so no retry library carries the load.
"""

import functools
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from pydantic import BaseModel

from reward.endpoint import Endpoint
from reward.gemini import CallError, Client, Kind, Reply, Tokens
from reward.limits import Limits, NoSlot, Slot
from reward.settings import STAND_IN_KEY, ChainSettings

FIRST_DELAY, LONGEST_DELAY = 1.0, 20.0
# The smallest share of the deadline that a call needs.
LEAST_SHARE = 0.1
# A call without an answer counts as a failure of its model only if it had this share of `call_timeout`.
FULL_SHARE = 0.9
# LaTeX has fewer characters per token than prose. An estimate that is too high costs throughput until the
# reply corrects it; one that is too low costs a 429.
BYTES_PER_TOKEN = 2.5


class ChainError(Exception):
    """No model gave an answer. The message gives the reason for each model; `spent` is the cost."""

    def __init__(self, message: str, spent: "Spent"):
        super().__init__(message)
        self.spent = spent


@dataclass
class Spent:
    """The cost of a question: calls that were sent, tokens of all replies, seconds with all waiting.

    Attributes:
        calls: by model, tries included.
        failures: how many of them gave no answer, by model.
    """

    calls: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Answer:
    """A reply, the model that gave it, the model's position in the chain, and the cost."""

    reply: Reply
    model: str
    fallbacks: int
    spent: Spent


class Chain:
    """The models of `settings`, in their order, under limits that all threads share."""

    def __init__(self, settings: ChainSettings, client: Client) -> None:
        self.settings, self.client = settings, client
        self.limits = Limits(settings)

    def ask(
        self,
        prompt: str,
        *,
        system: str | None = None,
        schema: type[BaseModel] | None = None,
        started: float | None = None,
    ) -> Answer:
        """Ask one question and return the first good answer. For all threads.

        Args:
            schema: makes the reply JSON of this form; its ranges are checked.
            started: when the deadline began to run (monotonic clock); None is now.

        Raises:
            ChainError: if no model answers within the deadline.
        """
        return _Question(self, prompt, system, schema, time.monotonic() if started is None else started).ask()


@dataclass
class _Question:
    chain: Chain
    prompt: str
    system: str | None
    schema: type[BaseModel] | None
    started: float
    spent: Spent = field(default_factory=Spent)
    tries: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        settings = self.chain.settings
        self.deadline = self.started + settings.deadline
        self.last_start = self.started + _last_start(settings)
        self.tries = dict.fromkeys(settings.models, settings.tries)
        size = len(self.prompt.encode()) + len((self.system or "").encode())
        self.tokens = round(size / BYTES_PER_TOKEN)

    def ask(self) -> Answer:
        """Go through the chain, and again while a model with tries left can answer before the deadline."""
        settings = self.chain.settings
        share = _first_share(settings)
        while True:
            waits = []
            for position, model in enumerate(settings.models):
                later = len(settings.models) - 1 - position
                outcome = self._ask_model(model, position, later * share)
                if isinstance(outcome, Answer):
                    return outcome
                if outcome is not None:
                    waits.append(outcome)
            share = 0.0
            now = time.monotonic()
            until = max(now, min(waits, default=self.deadline))
            if until >= self.last_start:
                raise self._failure()
            time.sleep(max(0.001, until - now))

    def _ask_model(self, model: str, position: int, reserve: float) -> Answer | float | None:
        """Use the model's tries. Return when to come back if the failure was not the model's fault, None for never.

        Args:
            reserve: seconds before the deadline that are left to later models.
        """
        give_up = self.last_start - reserve
        while self.tries[model]:
            slot = self.chain.limits.take(model, self.tokens, give_up)
            if isinstance(slot, NoSlot):
                self.reasons.setdefault(model, slot.why)
                return None if slot.is_shut else slot.until
            self.tries[model] -= 1
            try:
                return self._call(slot, position, self.deadline - reserve)
            except CallError as error:
                self.reasons[model] = str(error)
                if error.kind in (Kind.NO_KEY, Kind.REDIRECTED):
                    raise self._failure() from None
                if error.kind in (Kind.NEXT_MODEL, Kind.NO_MODEL, Kind.SPENT):
                    self.tries[model] = 0
                is_pause_due = error.kind in (Kind.FAILED, Kind.NO_ANSWER) and self.tries[model]
                if is_pause_due and not self._sleep(error, model, give_up):
                    return give_up
        return None

    def _call(self, slot: Slot, position: int, end: float) -> Answer:
        seconds = min(self.chain.settings.call_timeout, end - time.monotonic())
        failure: Kind | None = Kind.FAILED
        why, tokens, retry_after = "", Tokens(), None
        self.spent.calls[slot.model] += 1
        try:
            reply = self.chain.client.generate(
                slot.model,
                self.prompt,
                max(0.001, seconds),
                self.chain.settings.max_output_tokens,
                self.system,
                self.schema,
                self.chain.settings.temperature,
                functools.partial(self.chain.limits.mark_sent, slot),
            )
            failure, tokens = None, reply.tokens
        except CallError as error:
            self.spent.failures[slot.model] += 1
            failure, why, retry_after, tokens = error.kind, str(error), error.retry_after, error.tokens or Tokens()
            if failure is Kind.NO_ANSWER and seconds < FULL_SHARE * self.chain.settings.call_timeout:
                failure = Kind.CUT
            raise
        finally:
            self.spent.prompt_tokens += tokens.prompt
            self.spent.output_tokens += tokens.output
            self.spent.seconds = time.monotonic() - self.started
            self.chain.limits.give_back(slot, failure, why=why, tokens=tokens.prompt or None, retry_after=retry_after)
        return Answer(reply, slot.model, position, self.spent)

    def _sleep(self, error: CallError, model: str, give_up: float) -> bool:
        """Wait before the next try. Return False if that would leave no time for it."""
        used = self.chain.settings.tries - self.tries[model]
        delay = error.retry_after
        if delay is None:
            delay = random.uniform(0, min(LONGEST_DELAY, FIRST_DELAY * 2 ** (used - 1)))
        if time.monotonic() + delay >= give_up:
            return False
        time.sleep(delay)
        return True

    def _failure(self) -> ChainError:
        self.spent.seconds = time.monotonic() - self.started
        reasons = "; ".join(f"{model}: {reason}" for model, reason in self.reasons.items())
        return ChainError(reasons or "no model was asked before the deadline", self.spent)


def _last_start(settings: ChainSettings) -> float:
    """Return the latest start of a call, in seconds. A later call would be cut off and paid for in vain."""
    return settings.deadline - min(settings.call_timeout, LEAST_SHARE * settings.deadline)


def _first_share(settings: ChainSettings) -> float:
    """Return the seconds that the first round leaves to each later model, of half the time; later rounds leave none."""
    return settings.deadline / (2 * len(settings.models))


def tries_without_answer(settings: ChainSettings) -> list[list[float]]:
    """Return the seconds of each try that the deadline leaves to each model if no model ever answers.

    Without the pauses between tries, which are short beside such calls, and without waiting for the limits.
    """
    durations: list[list[float]] = [[] for _ in settings.models]
    share, now = _first_share(settings), 0.0
    while now < _last_start(settings) and any(len(seconds) < settings.tries for seconds in durations):
        for position, seconds in enumerate(durations):
            reserve = (len(durations) - 1 - position) * share
            give_up = _last_start(settings) - reserve
            is_first = True
            while len(seconds) < settings.tries and (is_first or now < give_up):
                seconds.append(min(settings.call_timeout, settings.deadline - reserve - now))
                now, is_first = now + seconds[-1], False
        share = 0.0
    return durations


def connect(
    settings: ChainSettings,
    key: str | None,
    stand_in: str | None = None,
    endpoint: Endpoint | None = None,
) -> Chain:
    """Return a chain that asks the server at `endpoint` (None: Google, without a proxy).

    Args:
        stand_in: the address of the local stand-in server, which is asked instead, directly and without a key.

    Raises:
        ValueError: without a key.
    """
    if stand_in:
        return Chain(settings, Client(STAND_IN_KEY, stand_in))
    if not key:
        raise ValueError("there is no key: export GEMINI_API_KEY")
    endpoint = endpoint or Endpoint()
    return Chain(settings, Client(key, endpoint.base_url, endpoint.proxy.url if endpoint.proxy else None))
