"""A local server that stands in for Gemini: it speaks its REST API, and judges nothing.

A small run without a key uses it. Every number in its replies counts the "=" of the response under judgement, up to the
schema's maximum. So it rewards shown working and nothing else.

    python -m reward.stand_in --address-file FILE --models ID ...
"""

import argparse
import json
import re
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
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


def main() -> None:
    """Serve until the process is ended; write the address to a file once the port is open."""
    parser = argparse.ArgumentParser(prog="python -m reward.stand_in", description=__doc__)
    parser.add_argument("--address-file", type=Path, required=True, help="is written with http://HOST:PORT")
    parser.add_argument("--models", nargs="+", required=True, help="the ids that exist")
    options = parser.parse_args()
    Handler.models = options.models
    server = _Server(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_port}"
    aside = options.address_file.with_suffix(".new")
    aside.write_text(url, encoding="utf-8")
    aside.replace(options.address_file)
    print(f"local stand-in for Gemini at {url}; its scores count the '=' of a response", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
