"""A local server that stands in for Gemini: it speaks its REST API, and judges nothing.

A small run without a key uses it. Every number in its replies counts the "=" of the response under judgement, up to the
schema's maximum. So it rewards shown working and nothing else.

    python -m reward.stand_in --address-file FILE --models ID ...
"""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any

_PATH = re.compile(r"/v1beta/models/([\w.-]+)(?::generateContent)?(?:\?.*)?")
_RESPONSE = re.compile(r"<response-([0-9a-f]+)>\n(.*)\n</response-\1>", re.DOTALL)
_CHARS_PER_TOKEN = 4


class StandIn(ThreadingHTTPServer):
    """The server of these models, on a free port of 127.0.0.1."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, models: Sequence[str], handler: "type[Handler] | None" = None) -> None:
        super().__init__(("127.0.0.1", 0), handler or Handler)
        self.models = models
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: StandIn
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """models.get."""
        if model := self.find_model():
            self.send(200, {"name": f"models/{model}", "supportedGenerationMethods": ["generateContent"]})

    def do_POST(self) -> None:
        """models.generateContent."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if model := self.find_model():
            self.send(200, reply(body, model))

    def find_model(self) -> str | None:
        """Return the model that is asked for; answer 404 if there is none of that name."""
        match = _PATH.fullmatch(self.path)
        if match and match[1] in self.server.models:
            return match[1]
        message = f"This model models/{match[1] if match else self.path} is no longer available."
        self.send(404, {"error": {"code": 404, "message": message, "status": "NOT_FOUND"}})
        return None

    def send(self, status: int, value: Any, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        """Send a value as JSON."""
        content = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", "Content-Length": len(content), **headers}.items():
            self.send_header(name, str(text))
        self.end_headers()
        try:
            self.write(content)
        except OSError:  # the client did not wait for the end
            self.close_connection = True

    def write(self, content: bytes) -> None:
        """Send the body of an answer."""
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: the launcher's log has other lines to show."""


def reply(body: dict[str, Any], model: str, text: str | None = None, reason: str = "STOP") -> dict[str, Any]:
    """Return the answer of the server to a request: a good one, unless `text` or `reason` say something else."""
    text = answer(body) if text is None else text
    return {
        "candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": reason, "index": 0}],
        "usageMetadata": {
            "promptTokenCount": prompt_tokens(body),
            "candidatesTokenCount": len(text) // _CHARS_PER_TOKEN + 1,
        },
        "modelVersion": f"stand-in-for-{model}",
    }


def answer(body: dict[str, Any]) -> str:
    """Return the text of a good reply: JSON for the schema of the request; without one, the boxed count of "="."""
    schema = body.get("generationConfig", {}).get("responseSchema")
    if not schema:
        return f"This is the local stand-in for Gemini, which counts. \\boxed{{{read_text(body).count('=')}}}"
    match = _RESPONSE.search(read_text(body))
    count = match[2].count("=") if match else 0
    forms = schema["properties"].items()
    return json.dumps({name: max(int(form["minimum"]), min(int(form["maximum"]), count)) for name, form in forms})


def prompt_tokens(body: dict[str, Any]) -> int:
    """Return how many tokens the stand-in counts for a request."""
    return len(read_text(body)) // _CHARS_PER_TOKEN + 1


def read_text(body: dict[str, Any]) -> str:
    """Return the text of the contents of a request."""
    return "".join(part.get("text", "") for content in body["contents"] for part in content["parts"])


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
    server.serve_forever()


if __name__ == "__main__":
    main()
