"""Asks a chain of Gemini models one question, within one deadline: retries, fallbacks, limits.

What is done about each kind of failure (google-genai itself makes one attempt and ignores the server's delays):

- 429: the model pauses for all processes as long as the server asks, then the next try.
- 408, 5xx, no connection, no answer in time: the next try after the server's delay, or after an exponential delay with
  full jitter (Brooker, "Exponential Backoff And Jitter", AWS, 2015). The breaker counts these.
- cut by the token limit, no JSON, not of the schema (a score out of its range): the next try, at once.
- blocked by a filter; 400 and other 4xx: the next model at once, since the same request gets the same answer.
- 403, 404: the next model at once; nobody calls this one for some minutes. Logged once as an error.
- 401, or 400 that names the key: the end, for all models. Logged once as an error.
"""

import email.utils
import functools
import queue
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from pydantic import BaseModel

from reward.limits import Limits, NoPlace, Outcome, Place
from reward.settings import STAND_IN_KEY, ChainSettings
from reward.shared_state import SharedState

FIRST_DELAY, LONGEST_DELAY = 1.0, 20.0
# Of the deadline: what a call needs at least.
LEAST_SHARE = 0.1
# Thoughts count as output, too.
MAX_OUTPUT_TOKENS = 16384
# LaTeX has fewer characters a token than prose. An estimate that is too high costs throughput, until the reply corrects
# it; one that is too low costs a 429.
BYTES_PER_TOKEN = 2.5
_MESSAGE_CHARS = 300

T = TypeVar("T")


class Kind(Enum):
    """A failure, by what is done about it; see the module."""

    THROTTLED = "throttled"
    FAILED = "failed"
    BAD_REPLY = "bad reply"
    NEXT_MODEL = "next model"
    NO_MODEL = "no such model"
    NO_KEY = "no valid key"


_OUTCOMES = {
    Kind.THROTTLED: Outcome.THROTTLED,
    Kind.FAILED: Outcome.FAILED,
    Kind.BAD_REPLY: Outcome.ANSWERED,
    Kind.NEXT_MODEL: Outcome.ANSWERED,
    Kind.NO_MODEL: Outcome.REFUSED,
    Kind.NO_KEY: Outcome.NO_KEY,
}


class CallError(Exception):
    """One call failed. Holds no key. `retry_after`: seconds that the server asks to wait; tokens as it counted them."""

    def __init__(self, kind: Kind, message: str, retry_after: float | None = None, tokens: "Tokens | None" = None):
        super().__init__(message)
        self.kind, self.retry_after, self.tokens = kind, retry_after, tokens


class ChainError(Exception):
    """No model gave an answer. The message says why, for each model; `spent` is what it took."""

    def __init__(self, message: str, spent: "Spent"):
        super().__init__(message)
        self.spent = spent


@dataclass(frozen=True)
class Tokens:
    """As the server counted them; `output` includes thoughts."""

    prompt: int = 0
    output: int = 0


@dataclass
class Spent:
    """What a question took: calls that were sent, tokens of all replies, seconds with all waiting."""

    calls: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Answer:
    """A reply. `parsed` is an instance of the schema, None where none was given; `fallbacks` is the model's place."""

    text: str
    parsed: Any
    model: str
    fallbacks: int
    spent: Spent


class Client:
    """google-genai's client, shared by threads, with errors of one type that hold no key.

    Args:
        base_url: of a server that speaks Gemini's API; None is Google's.
    """

    def __init__(self, key: str, base_url: str | None = None) -> None:
        from google import genai  # seconds to import

        self._key, self._types = key, genai.types
        # v1, the client's default, knows no preview models.
        options = genai.types.HttpOptions(
            base_url=base_url, api_version="v1beta", client_args={"event_hooks": {"request": [_add_trace]}}
        )
        self._client = genai.Client(api_key=key, vertexai=False, http_options=options)

    def generate(
        self,
        model: str,
        prompt: str,
        seconds: float,
        system: str | None = None,
        schema: type[BaseModel] | None = None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> tuple[str, Any, Tokens]:
        """Make one call and return the reply's text, the parsed schema (None without one), and the tokens.

        Args:
            on_sent: is called when the request has gone out.

        Raises:
            CallError: after at most `seconds`, slow replies included.
        """
        config = self._types.GenerateContentConfig(
            system_instruction=system,
            response_mime_type="application/json" if schema else None,
            response_schema=schema,
            max_output_tokens=MAX_OUTPUT_TOKENS,
            http_options=self._types.HttpOptions(timeout=max(1, round(seconds * 1000))),
        )

        def call() -> Any:
            _thread.on_sent = on_sent
            return self._client.models.generate_content(model=model, contents=prompt, config=config)

        response = self._send(call, seconds)
        tokens = _tokens(response)
        text = _text(response, tokens)
        if schema is None:
            return text, None, tokens
        try:
            return text, schema.model_validate_json(text), tokens
        except ValueError:  # pydantic's message would quote the reply
            raise CallError(Kind.BAD_REPLY, "the reply does not fit the schema", tokens=tokens) from None

    def find(self, model: str, seconds: float) -> None:
        """Ask the server for a model. Raises CallError where it has none, or cannot be asked."""
        options = self._types.GetModelConfig(http_options=self._types.HttpOptions(timeout=round(seconds * 1000)))
        self._send(functools.partial(self._client.models.get, model=model, config=options), seconds)

    def _send(self, call: Callable[[], T], seconds: float) -> T:
        try:
            return within(seconds, call)
        except Exception as error:
            # Without its cause, whose text and whose request may hold the key.
            raise classify(error, self._key) from None


_thread = threading.local()


def _add_trace(request: Any) -> None:
    """Hook of httpx: let its transport tell what it does with a request."""
    request.extensions["trace"] = _trace


def _trace(name: str, info: dict[str, Any]) -> None:
    """Callback of httpcore's trace extension, in the thread of the call."""
    if name.endswith("send_request_body.complete") and hasattr(_thread, "on_sent"):
        _thread.on_sent()


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return what `call` returns, in a thread of its own that is left to itself when the time is up.

    httpx's time-outs are for each read: a reply that comes byte by byte never meets them, and looking up a name has
    none. A thread that was left ends with its connection.

    Raises:
        TimeoutError: after `seconds`.
    """
    results: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((call(), None))
        except Exception as error:
            results.put((None, error))

    threading.Thread(target=run, daemon=True, name="gemini-call").start()
    try:
        result, error = results.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no whole answer after {seconds:.3g} s") from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


def classify(error: Exception, key: str) -> CallError:
    """Return what is to be done about an exception of the client, in words without the key."""
    from google.genai import errors

    message = f"{type(error).__name__}: {error}"
    if isinstance(error, errors.APIError):
        message = f"{error.code} {error.status}: {error.message}"
    message = message.replace(key, "<key>")[:_MESSAGE_CHARS]
    if not isinstance(error, errors.APIError):
        # A body that is no JSON, or not a reply's, raises errors of google-genai and pydantic, which are ValueErrors.
        return CallError(Kind.BAD_REPLY if isinstance(error, ValueError) else Kind.FAILED, message)
    is_key = error.code == 401 or (error.code == 400 and "API_KEY" in str(error.details))
    if is_key:
        return CallError(Kind.NO_KEY, message)
    if error.code == 429:
        return CallError(Kind.THROTTLED, message, retry_delay(error))
    if error.code in (403, 404):
        return CallError(Kind.NO_MODEL, message)
    if error.code == 408 or error.code >= 500:
        return CallError(Kind.FAILED, message, retry_delay(error))
    return CallError(Kind.NEXT_MODEL, message)


def retry_delay(error: Any) -> float | None:
    """Return the seconds that the server asks to wait (RetryInfo in the error, else Retry-After), None without."""
    details = error.details if isinstance(error.details, dict) else {}
    nested = details.get("error")
    entries = (nested if isinstance(nested, dict) else details).get("details") or []
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and str(entry.get("@type", "")).endswith("google.rpc.RetryInfo"):
            match = re.fullmatch(r"(\d+(?:\.\d+)?)s", str(entry.get("retryDelay")))
            if match:
                return float(match[1])
    header = getattr(error.response, "headers", {}).get("retry-after")
    if header is None:
        return None
    if re.fullmatch(r"\d+(\.\d+)?", header):
        return float(header)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return None


def _tokens(response: Any) -> Tokens:
    usage = response.usage_metadata
    if usage is None:
        return Tokens()
    output = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
    return Tokens(usage.prompt_token_count or 0, output)


def _text(response: Any, tokens: Tokens) -> str:
    """Return the text of a whole reply.

    Raises:
        CallError: for one that is blocked, cut or empty.
    """
    if response.prompt_feedback and response.prompt_feedback.block_reason:
        reason = response.prompt_feedback.block_reason
        raise CallError(Kind.NEXT_MODEL, f"the prompt was blocked: {reason}", tokens=tokens)
    if not response.candidates:
        raise CallError(Kind.BAD_REPLY, "the reply is empty", tokens=tokens)
    reason = response.candidates[0].finish_reason
    name = getattr(reason, "value", str(reason))
    if name == "MAX_TOKENS":
        raise CallError(Kind.BAD_REPLY, "the reply was cut by the token limit", tokens=tokens)
    if name != "STOP":
        raise CallError(Kind.NEXT_MODEL, f"the reply was blocked: {name}", tokens=tokens)
    if not response.text:
        raise CallError(Kind.BAD_REPLY, "the reply has no text", tokens=tokens)
    return response.text


class Chain:
    """The models of `settings`, in their order, under limits that all processes share through `state`."""

    def __init__(self, settings: ChainSettings, state: SharedState, client: Client) -> None:
        self.settings, self.client = settings, client
        self.limits = Limits(state, settings)

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
            ChainError: where no model answers within the deadline.
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
        # A call that starts later would be cut off, and be paid for nothing.
        self.last_start = self.deadline - min(settings.call_timeout, LEAST_SHARE * settings.deadline)
        self.tries = dict.fromkeys(settings.models, settings.tries)
        size = len(self.prompt.encode()) + len((self.system or "").encode())
        self.tokens = round(size / BYTES_PER_TOKEN)

    def ask(self) -> Answer:
        """Go through the chain, and again while a model with tries left can answer before the deadline."""
        settings = self.chain.settings
        # The first round leaves each later model its share of half the time; the next rounds leave nothing.
        share = settings.deadline / (2 * len(settings.models))
        while True:
            waits = []
            for place, model in enumerate(settings.models):
                later = len(settings.models) - 1 - place
                found = self._ask_model(model, place, later * share)
                if isinstance(found, Answer):
                    return found
                if found is not None:
                    waits.append(found)
            share = 0.0
            now = time.monotonic()
            until = max(now, min(waits, default=self.deadline))
            if until >= self.last_start:
                raise self._failure()
            time.sleep(max(0.001, until - now))

    def _ask_model(self, model: str, position: int, reserve: float) -> Answer | float | None:
        """Use the model's tries. Return when to come back, where it was not the model's fault; None for never.

        Args:
            reserve: seconds before the deadline that are left to later models.
        """
        give_up = self.last_start - reserve
        while self.tries[model]:
            place = self.chain.limits.take(model, self.tokens, give_up)
            if isinstance(place, NoPlace):
                self.reasons.setdefault(model, place.why)
                return None if place.is_shut else place.until
            self.tries[model] -= 1
            try:
                return self._call(place, position, self.deadline - reserve)
            except CallError as error:
                self.reasons[model] = str(error)
                if error.kind is Kind.NO_KEY:
                    raise self._failure() from None
                if error.kind in (Kind.NEXT_MODEL, Kind.NO_MODEL):
                    self.tries[model] = 0
                elif error.kind is Kind.FAILED and self.tries[model] and not self._sleep(error, model, give_up):
                    return give_up
        return None

    def _call(self, place: Place, position: int, end: float) -> Answer:
        seconds = min(self.chain.settings.call_timeout, end - time.monotonic())
        outcome, why, tokens, retry_after = Outcome.FAILED, "", Tokens(), None
        self.spent.calls += 1
        try:
            text, parsed, tokens = self.chain.client.generate(
                place.model,
                self.prompt,
                max(0.001, seconds),
                self.system,
                self.schema,
                functools.partial(self.chain.limits.mark_sent, place),
            )
            outcome = Outcome.ANSWERED
        except CallError as error:
            outcome, why = _OUTCOMES[error.kind], str(error)
            retry_after, tokens = error.retry_after, error.tokens or Tokens()
            raise
        finally:
            self.spent.prompt_tokens += tokens.prompt
            self.spent.output_tokens += tokens.output
            self.spent.seconds = time.monotonic() - self.started
            self.chain.limits.give_back(place, outcome, why=why, tokens=tokens.prompt or None, retry_after=retry_after)
        return Answer(text, parsed, place.model, position, self.spent)

    def _sleep(self, error: CallError, model: str, give_up: float) -> bool:
        """Wait before the next try; False where there would be no time left for it."""
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


def connect(settings: ChainSettings, state: SharedState, key: str | None, stand_in: str | None = None) -> Chain:
    """Return a chain that asks Google, or the local stand-in server at the address `stand_in`, which gets no real key.

    Raises:
        ValueError: without a key.
    """
    if stand_in:
        return Chain(settings, state, Client(STAND_IN_KEY, stand_in))
    if not key:
        raise ValueError("there is no key: export GEMINI_API_KEY")
    return Chain(settings, state, Client(key))
