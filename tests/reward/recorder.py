"""A server on loopback that records every request, including proxied ones, and gives prepared answers."""

import contextlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Fits every request: a reply with the best scores, which is a model's description too.
SCORES = dict.fromkeys(("validity", "completeness", "consistency", "honesty"), 4)
BEST = {
    "name": "models/first",
    "candidates": [{"content": {"parts": [{"text": json.dumps(SCORES)}]}, "finishReason": "STOP"}],
}


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes = json.dumps(BEST).encode()
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    text: str  # headers and body
    body: str


class Recorder:
    """Runs as a context manager. `answer` maps a request to its answer."""

    def __init__(self, answer: Callable[[Seen], Answer] = lambda seen: Answer()) -> None:
        self.seen: list[Seen] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def reply(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                recorder.seen.append(seen := Seen(self.command, self.path, f"{self.headers}{body}", body))
                response = answer(seen)
                self.send_response(response.status)
                for name, value in response.headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(response.body)))
                self.end_headers()
                self.wfile.write(response.body)

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):  # the client did not read all of it
                    super().handle()

            do_GET = do_POST = do_CONNECT = reply

            def log_message(self, format: str, *arguments: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.host}"

    def __enter__(self) -> "Recorder":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def make_redirector(status: int, to: str) -> Recorder:
    """Return a server that redirects every request to the same path of another."""
    return Recorder(lambda seen: Answer(status, b"", (("Location", to + seen.path),)))
