"""The stand-in for Gemini with faults, quotas and a memory of its requests."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from reward import stand_in
from reward.stand_in import answer, prompt_tokens, reply

_TYPE = "type.googleapis.com/google.rpc."


@dataclass(frozen=True)
class Fault:
    """The fault of one request.

    Attributes:
        kind: one of the following.

            - "status": an error of `status`;
            - "hang": no answer for `seconds`; "slow": a good answer, a byte every `seconds`;
            - "close": of the connection;
            - "says": a reply with the text of `message`;
            - "blocked": the prompt; "filtered": the reply; "cut": the reply; "no reply": JSON that is none.
        message: of the error. ``{key}`` in it becomes the key that came with the request.
        retry_delay: of the error, in seconds, as RetryInfo.
        quota: of a 429: the quotaId and quotaValue that were exceeded.
    """

    kind: str
    status: int = 500
    message: str = "an error of the stand-in"
    seconds: float = 0.0
    retry_delay: float | None = None
    quota: tuple[str, str] | None = None


@dataclass(frozen=True)
class Quota:
    """Requests that any `window` seconds may hold, for each model."""

    requests: int
    window: float


@dataclass(frozen=True)
class Received:
    """A generateContent request. `status`: of its answer; `time`: of the monotonic clock."""

    time: float
    model: str
    body: dict[str, Any]
    status: int


class StandIn(stand_in.StandIn):
    """Runs from `start` to `stop`, or inside a `with` block.

    Args:
        models: ids that exist; None is any.
        faults: is asked with the number of the request (from 0) and its model; None means no fault.
        latency: seconds that an answer takes.
        key: the only one that is valid; None is any.
        busy: look-ups of a model that fail with 503 before the first that is answered.
    """

    def __init__(
        self,
        models: Sequence[str] | None = None,
        quota: Quota | None = None,
        faults: Callable[[int, str], Fault | None] = lambda number, model: None,
        latency: float = 0.0,
        key: str | None = None,
        busy: int = 0,
    ) -> None:
        super().__init__(models or (), Handler)
        self.models = models  # type: ignore[assignment]
        self.quota, self.faults, self.latency, self.key, self.busy = quota, faults, latency, key, busy
        self.requests: list[Received] = []
        self.refused = 0  # requests without a valid key
        self.ended = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> "StandIn":
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.ended.set()  # releases requests that hang
        self.shutdown()
        self.server_close()

    def admit(self, model: str, body: dict[str, Any]) -> Fault | None:
        """Record a request; return its fault."""
        with self._lock:
            now = time.monotonic()
            fault = self.faults(len(self.requests), model) or self._find_quota_fault(model, now)
            status = fault.status if fault and fault.kind == "status" else 200
            self.requests.append(Received(now, model, body, status))
        return fault

    def _find_quota_fault(self, model: str, now: float) -> Fault | None:
        if self.quota is None:
            return None
        begin = now - self.quota.window
        recent = [one.time for one in self.requests if (one.model, one.status) == (model, 200) and one.time > begin]
        if len(recent) < self.quota.requests:
            return None
        return Fault("status", 429, "You exceeded your current quota.", retry_delay=recent[0] - begin)


class Handler(stand_in.Handler):
    server: StandIn
    byte_seconds = 0.0

    def do_GET(self) -> None:
        if self._has_key():
            self.server.busy -= 1
            if self.server.busy < 0:
                super().do_GET()
            else:
                self._send_error(503, "busy", _make_info("RetryInfo", retryDelay="0.01s"))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._has_key() and (model := self.find_model()):
            fault = self.server.admit(model, body)
            self.server.ended.wait(self.server.latency)
            if fault:
                self._fail(fault, body, model)
            else:
                self.send(200, reply(body, model))

    def find_model(self) -> str | None:
        if self.server.models is None:
            return self.path.rpartition("/")[2].partition(":")[0].partition("?")[0]
        return super().find_model()

    def write(self, content: bytes) -> None:
        if not self.byte_seconds:
            self.wfile.write(content)
            return
        for byte in content:
            self.wfile.write(bytes([byte]))
            if self.server.ended.wait(self.byte_seconds):
                return

    def _has_key(self) -> bool:
        key = self.headers.get("x-goog-api-key")
        if key and self.server.key in (None, key):
            return True
        self.server.refused += 1  # before the reply: whoever has it may read the count
        if key:
            self._send_error(
                400, "API key not valid. Pass a valid API key.", _make_info("ErrorInfo", reason="API_KEY_INVALID")
            )
        else:
            self._send_error(403, "Method doesn't allow unregistered callers.")
        return False

    def _send_error(self, status: int, message: str, *details: dict[str, Any]) -> None:
        error = {"code": status, "message": message, "status": "STAND_IN_FAULT", "details": details}
        self.send(status, {"error": error})

    def _fail(self, fault: Fault, body: dict[str, Any], model: str) -> None:
        if fault.kind == "status":
            details = []
            if fault.quota:
                violation = dict(zip(("quotaId", "quotaValue"), fault.quota, strict=True))
                details.append(_make_info("QuotaFailure", violations=[violation]))
            if fault.retry_delay is not None:
                details.append(_make_info("RetryInfo", retryDelay=f"{max(0.0, fault.retry_delay):.3f}s"))
            self._send_error(fault.status, fault.message.replace("{key}", self.headers["x-goog-api-key"]), *details)
        elif fault.kind in ("hang", "close"):
            self.server.ended.wait(fault.seconds)
            self.close_connection = True
        elif fault.kind == "slow":
            self.byte_seconds = fault.seconds
            self.send(200, reply(body, model))
        elif fault.kind == "says":
            self.send(200, reply(body, model, fault.message))
        else:
            self.send(200, _make_bad_reply(fault.kind, body, model))


def _make_info(kind: str, **fields: Any) -> dict[str, Any]:
    return {"@type": _TYPE + kind, **fields}


def _make_bad_reply(kind: str, body: dict[str, Any], model: str) -> Any:
    usage = {"promptTokenCount": prompt_tokens(body)}
    return {
        "blocked": {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": usage},
        "filtered": {"candidates": [{"finishReason": "SAFETY", "index": 0}]},
        "cut": reply(body, model, answer(body)[:-5], "MAX_TOKENS"),
        "no reply": ["neither", "of", "these"],
    }[kind]
