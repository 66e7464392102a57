"""A server on loopback with Gemini's API, injected faults, and a memory of its requests; it is no part of the product.

A good reply is the stand-in's, whose scores count the "=" of a response, unless a plan says otherwise.
"""

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from reward.gemini import make_stand_in_reply

KEY = "AIza-not-a-real-key-0123456789"
SCORES = {"validity": 4, "completeness": 3, "consistency": 2, "honesty": 1}  # quality 0.7
_TYPE = "type.googleapis.com/google.rpc."


@dataclass(frozen=True)
class Answer:
    """An answer as it is sent, or one that does not come: `fault` is one of `_FAULTS`."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""


# What is sent at once, and then again and again; None ends the connection.
_FAULTS: dict[str, tuple[bytes, bytes | None]] = {
    "hang": (b"", b""),
    "close": (b"", None),
    "close in body": (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{", None),
    "trickle": (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b" "),
    "trickle headers": (b"HTTP/1.1 200 OK\r\nX: ", b"a"),
    "early hints": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
}


def as_json(value: Any, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value).encode())


def error(status: int, message: str = "an error", delay: str = "", **details: Any) -> Answer:
    """An error with details of google.rpc; `delay` is RetryInfo's. ``{key}`` becomes the key of the request."""
    listed = [{"@type": _TYPE + kind, **fields} for kind, fields in details.items()]
    listed += [{"@type": _TYPE + "RetryInfo", "retryDelay": delay}] if delay else []
    return as_json({"error": {"code": status, "message": message, "status": "X", "details": listed}}, status)


def says(text: str, reason: str = "STOP", **more: Any) -> Answer:
    return as_json({"candidates": [{"content": {"parts": [{"text": text}]}, "finishReason": reason}], **more})


class Request(NamedTuple):
    time: float
    model: str
    body: dict[str, Any]
    text: str  # headers and body


Plan = Callable[[int, str], Answer | None]


class GeminiServer:
    """Runs inside a `with` block. The plan maps the number of a request (from 0) and its model to the answer."""

    def __init__(
        self, plan: Plan = lambda number, model: None, models: Sequence[str] | None = None, latency: float = 0.0
    ) -> None:
        self.plan, self.models, self.latency = plan, models, latency
        self.requests: list[Request] = []
        self.looked_up: list[str] = []
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"gemini": self}))
        self._server.handle_error = lambda *about: None  # type: ignore[method-assign]
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "GeminiServer":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.ended.set()  # ends what hangs
        self._server.shutdown()
        self._server.server_close()

    @property
    def asked(self) -> list[str]:
        return [request.model for request in self.requests]

    def answer(self, model: str, body: dict[str, Any] | None, text: str) -> Answer:
        with self._lock:
            number = len(self.requests) if body else len(self.looked_up)
            self.requests += [Request(time.monotonic(), model, body, text)] if body else []
            self.looked_up += [] if body else [model]
        if self.models is not None and model not in self.models:
            return error(404, f"models/{model} is not found")
        planned = self.plan(number, model)
        self.ended.wait(self.latency)
        return planned or as_json(make_stand_in_reply(body) if body else {"name": f"models/{model}"})


class _Handler(BaseHTTPRequestHandler):
    gemini: GeminiServer
    protocol_version = "HTTP/1.1"

    def respond(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        match = re.search(r"/models/([\w.-]+)", self.path)
        body = json.loads(content) if self.command == "POST" else None
        answer = self.gemini.answer(match[1] if match else "", body, f"{self.path}\n{self.headers}{content}")
        with contextlib.suppress(OSError):  # the client did not wait for the end
            if answer.fault:
                self.fail(*_FAULTS[answer.fault])
                return
            self.send_response(answer.status)
            sent = answer.body.replace(b"{key}", (self.headers["x-goog-api-key"] or "").encode())
            for name, value in {**answer.headers, "Content-Length": str(len(sent))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(sent)

    def fail(self, begin: bytes, again: bytes | None) -> None:
        self.close_connection = True
        self.wfile.write(begin)
        while again is not None and not self.gemini.ended.wait(0.05):
            self.wfile.write(again)

    do_GET = do_POST = do_CONNECT = respond

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""
