"""One call to Gemini: google-genai's client, with a deadline that holds, and errors sorted by remedy.

google-genai makes one attempt and ignores the server's delays. It returns replies that are blocked, cut, or out of
range without an error.
"""

import email.utils
import functools
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from pydantic import BaseModel

from reward.settings import GOOGLE_URL, STAND_IN_KEY

_MESSAGE_CHARS = 300

T = TypeVar("T")


class Kind(Enum):
    """How a call failed, by the remedy; see :mod:`reward.chain`."""

    THROTTLED = "429"
    SPENT = "429, and a pause does not help"
    FAILED = "5xx, or no connection"
    NO_ANSWER = "no answer in time"
    CUT = "the deadline came before the call's own limit"
    BAD_REPLY = "bad reply"
    NEXT_MODEL = "next model"
    NO_MODEL = "no such model, or no rights"
    NO_KEY = "no valid key"
    REDIRECTED = "redirected"


# By the status of an answer; see `classify` for others.
_KINDS = {401: Kind.NO_KEY, 403: Kind.NO_MODEL, 404: Kind.NO_MODEL, 429: Kind.THROTTLED}
_KINDS |= dict.fromkeys((408, 504), Kind.NO_ANSWER)  # the client tells the server how long it waits


class CallError(Exception):
    """One call failed. Holds no key. `retry_after`: seconds that the server asks to wait; tokens as it counted them."""

    def __init__(self, kind: Kind, message: str, retry_after: float | None = None, tokens: "Tokens | None" = None):
        super().__init__(message)
        self.kind, self.retry_after, self.tokens = kind, retry_after, tokens


@dataclass(frozen=True)
class Tokens:
    """As the server counted them; `output` includes thoughts."""

    prompt: int = 0
    output: int = 0


@dataclass(frozen=True)
class Reply:
    """A model's reply.

    Attributes:
        parsed: an instance of the schema; None without one.
        is_cut: whether the limit on tokens ended it; never with a schema.
    """

    text: str
    parsed: Any
    tokens: Tokens
    is_cut: bool


class Client:
    """google-genai's client, shared by threads, with errors of one type that hold no key.

    Args:
        base_url: of a server that speaks Gemini's API.
        proxy: the address of the proxy that requests go through; None is a direct connection.

    Attributes:
        origin: who answers: True is Google, False the local stand-in, a text the address of another server.
    """

    def __init__(self, key: str, base_url: str, proxy: str | None = None) -> None:
        import httpx2
        from google import genai  # seconds to import
        from google.genai.client import DebugConfig

        from reward import transport

        self._key, self._types, self._when_sent = key, genai.types, transport.call_when_sent
        self.origin: bool | str = base_url == GOOGLE_URL or (key != STAND_IN_KEY and base_url)
        # All that the environment could set is given here, or google-genai would read it there. The asynchronous
        # client sends nothing; google-genai would make one that reads proxies.
        options = genai.types.HttpOptions(
            base_url=base_url,
            api_version="v1beta",  # v1, the client's default, knows no preview models
            httpx_client=transport.HttpClient(key, proxy),
            httpx_async_client=httpx2.AsyncClient(trust_env=False),
        )
        no_replay = DebugConfig(client_mode=None, replays_directory=None, replay_id=None)
        self._client = genai.Client(api_key=key, vertexai=False, http_options=options, debug_config=no_replay)

    def generate(
        self,
        model: str,
        prompt: str,
        seconds: float,
        max_tokens: int,
        system: str | None = None,
        schema: type[BaseModel] | None = None,
        temperature: float | None = None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> Reply:
        """Make one call and return the reply.

        Args:
            max_tokens: of the reply, thoughts included.
            temperature: None is the API's own.
            on_sent: is called when the request has gone out.

        Raises:
            CallError: after at most `seconds`, slow replies included.
        """
        config = self._types.GenerateContentConfig(
            system_instruction=system,
            response_mime_type="application/json" if schema else None,
            response_schema=schema,
            max_output_tokens=max_tokens,
            temperature=temperature,
            store=False,  # else a paid project may keep requests: https://ai.google.dev/gemini-api/docs/logs-datasets
            http_options=self._types.HttpOptions(timeout=max(1, round(seconds * 1000))),
        )

        def call() -> Any:
            self._when_sent(on_sent)
            return self._client.models.generate_content(model=model, contents=prompt, config=config)

        response = self._send(call, seconds)
        tokens = _tokens(response)
        text, is_cut = _text(response, tokens)
        if schema is None:
            return Reply(text, None, tokens, is_cut)
        if is_cut:
            raise CallError(Kind.BAD_REPLY, "the reply was cut by the token limit", tokens=tokens)
        try:
            return Reply(text, schema.model_validate_json(text), tokens, is_cut)
        except ValueError:  # pydantic's message would quote the reply
            raise CallError(Kind.BAD_REPLY, "the reply does not fit the schema", tokens=tokens) from None

    def find(self, model: str, seconds: float) -> None:
        """Ask the server for a model. Raises CallError if it is missing, or the server cannot be asked."""
        options = self._types.GetModelConfig(http_options=self._types.HttpOptions(timeout=round(seconds * 1000)))
        self._send(functools.partial(self._client.models.get, model=model, config=options), seconds)

    def _send(self, call: Callable[[], T], seconds: float) -> T:
        try:
            return within(seconds, call)
        except Exception as error:
            # Without its cause, whose text and whose request may hold the key.
            raise classify(error, self._key) from None


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return what `call` returns, in a thread of its own that is abandoned when the time is up.

    httpx2's time-outs apply to each read: a reply that comes byte by byte, or after informational ones without end,
    never meets them. Looking up a name has no time-out at all. An abandoned thread's connection is cut, which ends it.

    Raises:
        TimeoutError: after `seconds`.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except Exception as error:
            done.set_exception(error)

    thread = threading.Thread(target=run, daemon=True, name="gemini-call")
    thread.start()
    try:
        return done.result(seconds)
    except TimeoutError:
        if done.done():  # the call's own error
            return done.result()
        from reward import transport  # of a client, which has imported it

        transport.cut(thread)
        raise TimeoutError(f"no complete answer after {seconds:.3g} s") from None


def classify(error: Exception, key: str) -> CallError:
    """Return the error for an exception of the client, in words without the key."""
    import httpx2
    from google.genai import errors

    from reward.transport import Redirected

    message = str(error) if isinstance(error, Redirected) else f"{type(error).__name__}: {error}"
    if isinstance(error, errors.APIError):
        message = f"{error.code} {error.status}: {error.message}"
    # httpx2 shows what it refuses as repr does.
    message = message.replace(key, "<key>").replace(repr(key)[1:-1], "<key>")[:_MESSAGE_CHARS]
    if not isinstance(error, errors.APIError):
        if isinstance(error, Redirected):
            return CallError(Kind.REDIRECTED, message)
        if isinstance(error, TimeoutError | httpx2.TimeoutException):
            return CallError(Kind.NO_ANSWER, message)
        # A body that is invalid JSON, or not a reply, raises ValueErrors of google-genai and pydantic.
        return CallError(Kind.BAD_REPLY if isinstance(error, ValueError) else Kind.FAILED, message)
    kind = _KINDS.get(error.code, Kind.FAILED if error.code >= 500 else Kind.NEXT_MODEL)
    if error.code == 400 and "API_KEY" in str(error.details):
        kind = Kind.NO_KEY
    elif error.code == 429 and is_spent(error):
        kind = Kind.SPENT
    return CallError(kind, message, retry_delay(error))


def _details(error: Any, kind: str) -> list[dict[str, Any]]:
    """Return the details of an error that are of one of google.rpc's kinds."""
    details = error.details if isinstance(error.details, dict) else {}
    nested = details.get("error")
    entries = (nested if isinstance(nested, dict) else details).get("details")
    return [
        entry
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict) and str(entry.get("@type", "")).endswith(f"google.rpc.{kind}")
    ]


def is_spent(error: Any) -> bool:
    """Return whether a 429 names a daily quota, or a quota of 0. A pause of seconds does not help then."""
    for entry in _details(error, "QuotaFailure"):
        violations = entry.get("violations")
        for violation in violations if isinstance(violations, list) else []:
            if isinstance(violation, dict) and (
                "PerDay" in str(violation.get("quotaId")) or str(violation.get("quotaValue")) == "0"
            ):
                return True
    return re.search(r"\blimit: 0\b", str(error.message)) is not None


def retry_delay(error: Any) -> float | None:
    """Return the seconds that the server asks to wait (RetryInfo in the error, else Retry-After), else None."""
    for entry in _details(error, "RetryInfo"):
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
    counts = (usage.prompt_token_count, usage.candidates_token_count, usage.thoughts_token_count)
    prompt, answer, thoughts = (max(0, count or 0) for count in counts)  # a server may be wrong
    return Tokens(prompt, answer + thoughts)


def _text(response: Any, tokens: Tokens) -> tuple[str, bool]:
    """Return the text of a reply, and whether the limit on tokens has cut it. A cut reply may be empty.

    Raises:
        CallError: for a reply that is blocked or empty.
    """
    if response.prompt_feedback and response.prompt_feedback.block_reason:
        reason = response.prompt_feedback.block_reason
        raise CallError(Kind.NEXT_MODEL, f"the prompt was blocked: {reason}", tokens=tokens)
    if not response.candidates:
        raise CallError(Kind.BAD_REPLY, "the reply is empty", tokens=tokens)
    reason = response.candidates[0].finish_reason
    name = getattr(reason, "value", str(reason))
    if name == "MAX_TOKENS":
        return response.text or "", True
    if name != "STOP":
        raise CallError(Kind.NEXT_MODEL, f"the reply was blocked: {name}", tokens=tokens)
    if not response.text:
        raise CallError(Kind.BAD_REPLY, "the reply has no text", tokens=tokens)
    return response.text, False
