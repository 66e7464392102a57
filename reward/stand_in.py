"""A local server that stands in for Gemini: it speaks its REST API, and judges nothing.

A small run without a key uses it, and tests use it for faults. Every number in its replies counts the "=" of the
response under judgement, up to the schema's maximum. So it rewards shown working and nothing else.

    python -m reward.stand_in --address-file FILE --models ID ...
"""

import argparse
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from reward.stand_in_replies import bad_reply, prompt_tokens, reply

_GENERATE = re.compile(r"/v1beta/models/([\w.-]+):generateContent")
_MODEL = re.compile(r"/v1beta/models/([\w.-]+)")


@dataclass(frozen=True)
class Fault:
    """The fault of one request.

    Attributes:
        kind: one of the following.

            - "status": an error of `status`;
            - "hang": no answer for `seconds`; "slow": a good answer, a byte every `seconds`;
            - "close": of the connection;
            - "blocked": the prompt; "filtered": the reply;
            - "cut", "empty", "not json", "out of range", "no reply" (JSON that is not a reply): a bad reply;
            - "says": a reply with the text of `message`.
        message: of the error. ``{key}`` in it becomes the key that came with the request.
        retry_delay: of the error, in seconds, as RetryInfo; `retry_after` as a header.
        quota: of a 429: the quotaId and quotaValue that were exceeded.
    """

    kind: str
    status: int = 500
    message: str = "an error of the stand-in"
    seconds: float = 0.0
    retry_delay: float | None = None
    retry_after: str | None = None
    quota: tuple[str, str] | None = None


@dataclass(frozen=True)
class Quota:
    """Requests and prompt tokens that any `window` seconds may hold, for each model."""

    requests: int
    window: float
    tokens: int = 10**9


@dataclass(frozen=True)
class ReceivedRequest:
    """A generateContent request. `status`: of its answer; `time`: of the monotonic clock."""

    time: float
    model: str
    body: dict[str, Any]
    status: int


class StandIn:
    """The server on a free port of 127.0.0.1. It runs from `start` to `stop`, or inside a `with` block.

    Args:
        models: ids that exist; None is any.
        quota: of each model.
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
        self.models, self.quota, self.faults, self.latency, self.key = models, quota, faults, latency, key
        self.requests: list[ReceivedRequest] = []
        self.refused = 0  # requests without a valid key
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._number = 0
        self._busy = busy
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"stand_in": self}))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "StandIn":
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Serve in a thread."""
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def serve(self) -> None:
        """Serve in this thread."""
        self._server.serve_forever()

    def stop(self) -> None:
        """Close the port, and release requests that hang."""
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()

    def admit_look_up(self) -> bool:
        """Count a look-up of a model; return whether it is answered."""
        with self._lock:
            self._busy -= 1
            return self._busy < 0

    def admit(self, model: str, body: dict[str, Any]) -> Fault | None:
        """Record a request; return its fault."""
        with self._lock:
            now, number = time.monotonic(), self._number
            self._number += 1
            fault = self.faults(number, model) or self._over_quota(model, body, now)
            status = fault.status if fault and fault.kind == "status" else 200
            self.requests.append(ReceivedRequest(now, model, body, status))
        return fault

    def _over_quota(self, model: str, body: dict[str, Any], now: float) -> Fault | None:
        if self.quota is None:
            return None
        recent = [
            request
            for request in self.requests
            if request.model == model and request.status == 200 and request.time > now - self.quota.window
        ]
        tokens = sum(prompt_tokens(request.body) for request in recent)
        if len(recent) < self.quota.requests and tokens + prompt_tokens(body) <= self.quota.tokens:
            return None
        delay = recent[0].time + self.quota.window - now if recent else self.quota.window
        return Fault("status", 429, "You exceeded your current quota.", retry_delay=delay)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


class _Handler(BaseHTTPRequestHandler):
    stand_in: StandIn
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """models.get."""
        if self._refuse_key():
            return
        if not self.stand_in.admit_look_up():
            self._error(503, "busy", "UNAVAILABLE", 0.01)
            return
        match = _MODEL.fullmatch(self.path.partition("?")[0])
        if match is None or not self._has(match[1]):
            self._error(404, f"{self.path} is not found", "NOT_FOUND")
            return
        self._send(200, {"name": f"models/{match[1]}", "supportedGenerationMethods": ["generateContent"]})

    def do_POST(self) -> None:
        """models.generateContent."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._refuse_key():
            return
        match = _GENERATE.fullmatch(self.path.partition("?")[0])
        if match is None or not self._has(match[1]):
            name = match[1] if match else self.path
            self._error(404, f"This model models/{name} is no longer available.", "NOT_FOUND")
            return
        fault = self.stand_in.admit(match[1], body)
        self.stand_in.ended.wait(self.stand_in.latency)
        if fault is None:
            self._send(200, reply(body, match[1]))
        else:
            self._fail(fault, body, match[1])

    def _fail(self, fault: Fault, body: dict[str, Any], model: str) -> None:
        if fault.kind == "status":
            message = fault.message.replace("{key}", self.headers.get("x-goog-api-key", ""))
            details = []
            if fault.quota:
                violation = dict(zip(("quotaId", "quotaValue"), fault.quota, strict=True))
                details = [{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]}]
            self._error(fault.status, message, "STAND_IN_FAULT", fault.retry_delay, fault.retry_after, details)
        elif fault.kind == "hang":
            self.stand_in.ended.wait(fault.seconds)
            self.close_connection = True
        elif fault.kind == "close":
            self.close_connection = True
        elif fault.kind == "slow":
            self._send(200, reply(body, model), byte_seconds=fault.seconds)
        elif fault.kind == "says":
            self._send(200, reply(body, model, fault.message))
        elif fault.kind == "no reply":
            self._send(200, ["neither", "of", "these"])
        else:
            self._send(200, bad_reply(fault.kind, body, model))

    def _has(self, model: str) -> bool:
        return self.stand_in.models is None or model in self.stand_in.models

    def _refuse_key(self) -> bool:
        key = self.headers.get("x-goog-api-key")
        if key and self.stand_in.key in (None, key):
            return False
        self.stand_in.refused += 1  # before the reply: whoever has it may read the count
        if key:
            details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}]
            self._error(400, "API key not valid. Please pass a valid API key.", "INVALID_ARGUMENT", details=details)
        else:
            self._error(403, "Method doesn't allow unregistered callers.", "PERMISSION_DENIED")
        return True

    def _error(
        self,
        status: int,
        message: str,
        name: str,
        retry_delay: float | None = None,
        retry_after: str | None = None,
        details: Sequence[dict[str, Any]] = (),
    ) -> None:
        entries = list(details)
        if retry_delay is not None:
            kind = "type.googleapis.com/google.rpc.RetryInfo"
            entries.append({"@type": kind, "retryDelay": f"{max(0.0, retry_delay):.3f}s"})
        error = {"code": status, "message": message, "status": name, "details": entries}
        headers = {} if retry_after is None else {"Retry-After": retry_after}
        self._send(status, {"error": error}, headers)

    def _send(
        self, status: int, value: Any, headers: dict[str, str] | None = None, byte_seconds: float | None = None
    ) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        try:
            if byte_seconds is None:
                self.wfile.write(content)
                return
            for byte in content:
                self.wfile.write(bytes([byte]))
                if self.stand_in.ended.wait(byte_seconds):
                    return
        except OSError:  # the client did not wait for the end
            self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: the launcher's log has other lines to show."""


def main() -> None:
    """Serve until the process is ended; write the address to a file once the port is open."""
    parser = argparse.ArgumentParser(prog="python -m reward.stand_in", description=__doc__)
    parser.add_argument("--address-file", type=Path, required=True, help="is written with http://HOST:PORT")
    parser.add_argument("--models", nargs="+", required=True, help="the ids that exist")
    options = parser.parse_args()
    server = StandIn(options.models)
    aside = options.address_file.with_suffix(".new")
    aside.write_text(server.url, encoding="utf-8")
    aside.replace(options.address_file)
    print(f"local stand-in for Gemini at {server.url}; its scores count the '=' of a response", flush=True)
    server.serve()


if __name__ == "__main__":
    main()
