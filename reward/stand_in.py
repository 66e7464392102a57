"""A local server that stands in for Gemini: it speaks its REST API, and judges nothing.

A small run without a key uses it. Every number in its replies counts the "=" of the response under judgement, up to the
schema's maximum. So it rewards shown working and nothing else.
"""

import json
import re
import signal
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_PATH = re.compile(r"/v1beta/models/([\w.-]+)(?::generateContent)?(?:\?.*)?")
_RESPONSE = re.compile(r"<response-([0-9a-f]+)>\n(.*)\n</response-\1>", re.DOTALL)


class Handler(BaseHTTPRequestHandler):
    """Answers models.get and models.generateContent for the ids in `models`."""

    models: Sequence[str] = ()
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def respond(self) -> None:
        """Answer one request."""
        sent, match = self.rfile.read(int(self.headers.get("Content-Length", 0))), _PATH.fullmatch(self.path)
        is_known = match is not None and match[1] in self.models
        value: Any = {"error": {"code": 404, "message": f"{self.path} is not found", "status": "NOT_FOUND"}}
        if is_known:
            value = reply(json.loads(sent)) if sent else {"name": self.path}
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


def reply(body: dict[str, Any]) -> dict[str, Any]:
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


def serve(models: Sequence[str]) -> str:
    """Serve these ids in a thread, for as long as this process lives; return the address."""
    Handler.models = models
    server = _Server(("127.0.0.1", 0), Handler)
    # The thread takes no signal: one that a process holds back stays pending.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return f"http://127.0.0.1:{server.server_port}"
