"""One call to Gemini: google-genai's client, with a deadline that holds, and errors sorted by remedy; and a stand-in.

google-genai makes one attempt and ignores the server's delays. It returns replies that are blocked, cut, or out of
range without an error. Its time-outs apply to each read: a reply that comes byte by byte never meets them.
"""

import asyncio
import contextlib
import json
import logging
import re
import signal
import threading
from collections.abc import AsyncIterator, Sequence
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from pydantic import BaseModel

from reward.settings import STAND_IN_KEY, ChainSettings, SettingsError, key_variable

MODELS_PAGE = "https://ai.google.dev/gemini-api/docs/models"
FIND_TRIES, FIND_SECONDS, FIND_DELAY = 3, 10.0, 1.0
_MESSAGE_CHARS = 300
_PATH = re.compile(r"/v1beta/models/([\w.-]+)(?::generateContent)?(?:\?.*)?")
_RESPONSE = re.compile(r"<response-([0-9a-f]+)>\n(.*)\n</response-\1>", re.DOTALL)

Schema = type[BaseModel] | None


class Kind(Enum):
    """How a call failed, by the remedy; see :mod:`reward.chain`."""

    THROTTLED = "429"
    SPENT = "429, and a pause does not help"
    FAILED = "5xx, or no connection"
    NO_ANSWER = "no answer in time"
    BAD_REPLY = "bad reply"
    NEXT_MODEL = "next model"
    NO_MODEL = "no such model, or no rights"
    NO_KEY = "no valid key, or a redirect"


# The client tells the server how long it waits: 408 and 504.
_KINDS = {401: Kind.NO_KEY, 403: Kind.NO_MODEL, 404: Kind.NO_MODEL, 408: Kind.NO_ANSWER, 504: Kind.NO_ANSWER}


class CallError(Exception):
    """One call failed. Holds no key. `retry_after`: seconds that the server asks to wait."""

    def __init__(self, kind: Kind, message: str, retry_after: float | None = None, tokens: tuple[int, ...] = ()):
        super().__init__(message)
        self.kind, self.retry_after, self.tokens = kind, retry_after, tokens


class Reply(NamedTuple):
    """A model's reply. It is cut by the limit on tokens, never with a schema. Tokens: prompt, answer, thoughts."""

    text: str
    parsed: Any
    is_cut: bool
    tokens: tuple[int, ...]


class Client:
    """google-genai's client for one event loop, with errors of one type that hold no key. `origin`: who answers."""

    def __init__(self, key: str, base_url: str) -> None:
        import httpx2
        from google import genai  # seconds to import

        self._key, self._types = key, genai.types
        self.origin = base_url if key != STAND_IN_KEY else "stand-in"
        # Its own HTTP client would follow redirects with the key and the prompt, and use proxies of the environment.
        context, limits = httpx2.create_ssl_context(), httpx2.Limits(max_keepalive_connections=0)
        options = genai.types.HttpOptions(
            base_url=base_url,
            api_version="v1beta",  # v1, the client's default, knows no preview models
            httpx_client=httpx2.Client(verify=context, trust_env=False),  # sends nothing
            httpx_async_client=httpx2.AsyncClient(verify=context, trust_env=False, limits=limits),
        )
        self._models = genai.Client(api_key=key, vertexai=False, http_options=options).aio.models
        logging.getLogger("google_genai").setLevel(logging.WARNING)  # it logs servers' errors, which may hold the key

    async def generate(
        self, settings: ChainSettings, model: str, seconds: float, prompt: str, system: Any, schema: Schema
    ) -> Reply:
        """Make one call and return the reply. Raises CallError after at most `seconds`, slow replies included."""
        config = self._types.GenerateContentConfig(
            system_instruction=system,
            response_mime_type="application/json" if schema else None,
            response_schema=schema,
            max_output_tokens=settings.max_output_tokens,
            store=False,  # else a paid project may keep requests: https://ai.google.dev/gemini-api/docs/logs-datasets
            http_options=self._types.HttpOptions(timeout=max(1, round(seconds * 1000))),
        )
        async with self._limit(seconds):
            return _read(await self._models.generate_content(model=model, contents=prompt, config=config), schema)

    async def find(self, model: str) -> None:
        """Ask the server for a model, a few times if that may help. Raises CallError."""
        retry = self._types.HttpRetryOptions(attempts=FIND_TRIES, initial_delay=FIND_DELAY, max_delay=FIND_SECONDS)
        options = self._types.HttpOptions(timeout=round(FIND_SECONDS * 1000), retry_options=retry)
        async with self._limit(2 * FIND_TRIES * FIND_SECONDS):
            await self._models.get(model=model, config=self._types.GetModelConfig(http_options=options))

    @contextlib.asynccontextmanager
    async def _limit(self, seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except CallError:
            raise
        except Exception as error:  # without its cause, whose text and whose request may hold the key
            raise classify(error, self._key) from None


def classify(error: Exception, key: str) -> CallError:
    """Return the error for an exception of the client, in words without the key."""
    import httpx2
    from google.genai import errors

    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return CallError(Kind.NO_ANSWER, f"no complete answer in time ({type(error).__name__})")
    if not isinstance(error, errors.APIError):
        # A body that is invalid JSON, or not a reply, raises ValueErrors of google-genai and pydantic.
        kind = Kind.BAD_REPLY if isinstance(error, ValueError) else Kind.FAILED
        return CallError(kind, _hide(f"{type(error).__name__}: {error}", key))
    code, details = error.code, json.dumps(error.details)
    if 300 <= code < 400:
        return CallError(Kind.NO_KEY, f"the server redirects ({code}), and the key is not sent on")
    kind = _KINDS.get(code, Kind.FAILED if code >= 500 else Kind.NEXT_MODEL)
    if code == 400 and "API_KEY" in details:
        kind = Kind.NO_KEY
    elif code == 429:  # for a daily quota, or one of 0, a pause of seconds does not help
        is_spent = re.search(r'"quotaId": "[^"]*PerDay|"quotaValue": "0"|\blimit: 0\b', details)
        kind = Kind.SPENT if is_spent else Kind.THROTTLED
    header = getattr(error.response, "headers", {}).get("retry-after", "")
    delay = re.search(r'"retryDelay": "(\d+(?:\.\d+)?)s"', details) or re.fullmatch(r"(\d+(?:\.\d+)?)", header)
    return CallError(kind, _hide(f"{code} {error.status}: {error.message}", key), float(delay[1]) if delay else None)


def _hide(message: str, key: str) -> str:
    # httpx2 shows what it refuses as repr does.
    return message.replace(key, "<key>").replace(repr(key)[1:-1], "<key>")[:_MESSAGE_CHARS]


def _read(response: Any, schema: Schema) -> Reply:
    """Return the reply in a response. Raises CallError for one that is blocked, empty, cut, or not of the schema."""
    usage = response.usage_metadata
    counts = (usage.prompt_token_count, usage.candidates_token_count, usage.thoughts_token_count) if usage else ()
    tokens = tuple(max(0, count or 0) for count in counts)  # a server may be wrong
    blocked = response.prompt_feedback and response.prompt_feedback.block_reason
    reason = blocked or (response.candidates[0].finish_reason if response.candidates else "STOP")
    name = getattr(reason, "value", str(reason))
    text, is_cut = "" if blocked else response.text or "", name == "MAX_TOKENS"
    if blocked or name not in ("STOP", "MAX_TOKENS"):
        raise CallError(Kind.NEXT_MODEL, f"blocked: {name}", tokens=tokens)
    if schema and is_cut:
        raise CallError(Kind.BAD_REPLY, "the reply was cut by the token limit", tokens=tokens)
    if not (text or is_cut):
        raise CallError(Kind.BAD_REPLY, "the reply is empty", tokens=tokens)
    try:
        return Reply(text, schema.model_validate_json(text) if schema else None, is_cut, tokens)
    except ValueError:  # pydantic's message would quote the reply
        raise CallError(Kind.BAD_REPLY, "the reply does not fit the schema", tokens=tokens) from None


async def find_missing(models: Sequence[str], key: str, base_url: str) -> list[SettingsError]:
    """Ask the API for each model; return why those that it does not offer, or the API itself, cannot be used."""
    client = Client(key, base_url)
    missing: list[SettingsError] = []
    for model in models:
        try:
            await client.find(model)
        except CallError as error:
            if error.kind is not Kind.NO_MODEL:
                what, remedy = f"cannot be asked about {model}", f"see whether this machine reaches {base_url}"
                if error.kind is Kind.NO_KEY:
                    what, remedy = f"refuses the key of {key_variable()}", f"export a valid key, and check {base_url}"
                return [*missing, SettingsError(f"the Gemini API {what}: {error}", remedy)]
            missing.append(SettingsError(f"the Gemini API does not offer {model}: {error}", f"see {MODELS_PAGE}"))
    return missing


class _StandIn(BaseHTTPRequestHandler):
    """Answers models.get and models.generateContent for the ids in `models`, and judges nothing.

    A small run without a key uses it. Every number in its replies counts the "=" of the response under judgement, up to
    the schema's maximum. So it rewards shown working and nothing else.
    """

    models: Sequence[str] = ()
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def respond(self) -> None:
        """Answer one request."""
        sent, match = self.rfile.read(int(self.headers.get("Content-Length", 0))), _PATH.fullmatch(self.path)
        is_known = match is not None and match[1] in self.models
        value: Any = {"error": {"code": 404, "message": f"{self.path} is not found", "status": "NOT_FOUND"}}
        if is_known:
            value = make_stand_in_reply(json.loads(sent)) if sent else {"name": self.path}
        content = json.dumps(value).encode()
        self.send_response(200 if is_known else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = respond

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: the launcher's log has other lines to show."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


def make_stand_in_reply(body: dict[str, Any]) -> dict[str, Any]:
    """Return a good reply: JSON for the schema of the request; without one, the boxed count of "="."""
    prompt, schema = body["contents"][0]["parts"][0]["text"], body.get("generationConfig", {}).get("responseSchema")
    text = f"This is the local stand-in for Gemini, which counts. \\boxed{{{prompt.count('=')}}}"
    if schema:
        match = _RESPONSE.search(prompt)
        count, forms = match[2].count("=") if match else 0, schema["properties"].items()
        text = json.dumps({name: max(int(form["minimum"]), min(int(form["maximum"]), count)) for name, form in forms})
    tokens = {"promptTokenCount": len(prompt) // 4 + 1, "candidatesTokenCount": len(text) // 4 + 1}
    content = {"role": "model", "parts": [{"text": text}]}
    return {"candidates": [{"content": content, "finishReason": "STOP"}], "usageMetadata": tokens}


def serve_stand_in(models: Sequence[str]) -> str:
    """Serve a local stand-in for Gemini in a thread, as long as this process lives; return the address."""
    _StandIn.models = models
    server = _Server(("127.0.0.1", 0), _StandIn)
    # The thread takes no signal: one that a process holds back stays pending.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return f"http://127.0.0.1:{server.server_port}"
