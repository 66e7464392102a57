"""The evaluation of a model behind an API, in the environments that training uses."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from eval import conversations
from grpo.multi_turn import retrieval
from tests.grpo.multi_turn.scripted import call


class StandInAPI(BaseHTTPRequestHandler):
    """A stand-in for a model behind the OpenAI protocol: searches, reads what it found, then answers."""

    seen: ClassVar[list] = []

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append(asked)
        results = [message["content"] for message in asked["messages"] if message["role"] == "tool"]
        message = {"role": "assistant", "content": None}
        if not results:
            message["tool_calls"] = [call("search", {"query": "bridges"}, "x1"), call("read", {"document": 1}, "x2")]
        else:
            message["content"] = "\\boxed{417}" if "417" in "".join(results) else "unknown"
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if not results else "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
        body = json.dumps({"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice],
                           "usage": usage}).encode()  # fmt: skip
        self.send_response(200 if asked["model"] == "m" else 400)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Says nothing."""


@pytest.fixture
def api():
    StandInAPI.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandInAPI)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_same_environment_evaluates_a_model_behind_an_api(api, tmp_path, monkeypatch, capsys):
    (library := tmp_path / "library").mkdir()
    (library / "rivers.txt").write_text("The longest river is the Ona. It has 417 bridges, built in stone.")
    monkeypatch.setenv(retrieval.VARIABLE, str(library))
    data, out = tmp_path / "data.jsonl", tmp_path / "out"
    data.write_text('{"id": "b", "prompt": "How many bridges?", "label": "417"}\n')
    command = ["--environment", "retrieval", "--data", str(data), "--base-url", api, "--out", str(out), "--n", "3"]
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert conversations.main([*command, "--model", "m"]) == 2 and not StandInAPI.seen
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert conversations.main([*command, "--model", "m"]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["conversations"] == 3 and summary["correct"] == 1 and summary["tokens"] == 10
    records = [json.loads(line) for line in (out / "conversations.jsonl").read_text().splitlines()]
    assert all(record["ending"] == "done" and "417 bridges" in record["messages"][3]["content"] for record in records)
    assert {tool["function"]["name"] for tool in StandInAPI.seen[0]["tools"]} == {"search", "read"}
    assert all("name" not in message for asked in StandInAPI.seen for message in asked["messages"])
    assert conversations.main([*command, "--model", "m"]) == 2  # the folder is not empty
    assert "is not empty" in capsys.readouterr().err
    command[-3] = str(tmp_path / "other")
    assert conversations.main([*command, "--model", "unknown"]) == 1
    assert json.loads((tmp_path / "other" / "summary.json").read_text())["failed"] == 3


def test_an_environment_that_fails_is_a_conversation_that_failed(api, tmp_path, monkeypatch):
    (file := tmp_path / "failing.py").write_text(
        "from grpo.multi_turn import environment\n\n"
        "class Environment(environment.Environment):\n"
        "    def __init__(self, prompt, label):\n"
        "        super().__init__(prompt, label)\n"
        "        self.gold = float(label)\n\n"
        "    async def score(self, messages, ending):\n"
        "        return environment.Score(1 / self.gold, 1.0)\n"
    )
    (data := tmp_path / "data.jsonl").write_text(
        "".join(json.dumps({"id": label, "prompt": "q", "label": label}) + "\n" for label in ("2", "two", "0"))
    )
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    command = ["--environment", str(file), "--data", str(data), "--base-url", api, "--out", str(tmp_path / "out")]
    assert conversations.main([*command, "--model", "m", "--turns", "1"]) == 1
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["conversations"] == 3 and summary["failed"] == 2  # could not be made, could not be scored
    assert summary["reward"] == 0.5 and summary["ended_by_error"] == pytest.approx(1 / 3)
    fine, unmade, unscored = map(json.loads, (tmp_path / "out" / "conversations.jsonl").read_text().splitlines())
    assert fine["reward"] == 0.5 and "error" not in fine and unscored["reward"] is None
    assert unmade["ending"] == "error" and unmade["reward"] is None and "could not convert" in unmade["error"]
    assert len(StandInAPI.seen) == 2
