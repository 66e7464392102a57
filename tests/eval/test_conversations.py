"""The evaluation of a model behind an API, in the environments that training uses."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from eval import conversations
from grpo.rollout.multi_turn import retrieval
from tests.grpo.rollout.multi_turn.scripted import call
from tests.reward.recorder import Recorder, redirector


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
    monkeypatch.setenv(retrieval.VARIABLE, "")
    monkeypatch.delenv(retrieval.VARIABLE)  # and back to what it was at the end
    monkeypatch.setenv("LIBRARY", str(library))
    data, out = tmp_path / "data.jsonl", tmp_path / "out"
    data.write_text('{"id": "b", "prompt": "How many bridges?", "label": "417"}\n')
    command = [
        "--environment",
        "retrieval",
        "--data",
        str(data),
        "--base-url",
        api,
        "--out",
        str(out),
        "--n",
        "3",
    ]
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


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_get_neither_key_nor_messages(tmp_path, monkeypatch, status):
    (file := tmp_path / "failing.py").write_text(FAILING)
    (data := tmp_path / "data.jsonl").write_text('{"id": "a", "prompt": "q", "label": "fine"}\n')
    monkeypatch.setenv("OPENAI_API_KEY", key := "a-key-of-the-user")
    with Recorder() as foreign, redirector(status, f"http://{key}@{foreign.host}") as server:
        command = ["--environment", str(file), "--data", str(data), "--base-url", server.url, "--model", "m"]
        assert conversations.main([*command, "--out", str(tmp_path / "out")]) == 1
        assert foreign.seen == [] and len(server.seen) == 1
    text = (tmp_path / "out" / "conversations.jsonl").read_text()
    said = f"redirects ({status}) to the host {foreign.host}; redirects are not followed: set --base-url"
    assert said in json.loads(text)["error"] and key not in text


FAILING = """
from grpo.rollout.multi_turn import environment

class Environment(environment.Environment):
    def __init__(self, prompt, label):
        super().__init__(prompt, label)
        if label == "unmade":
            raise ValueError(label)

    async def start(self):
        return [None] if self.label == "unsaid" else await super().start()

    async def score(self, messages, ending):
        if self.label == "edited":
            messages.append({"role": "user", "content": {"what no file can hold"}})
        if self.label == "unscored":
            raise KeyError("gold")
        return environment.Score(None if self.label == "unrated" else 0.5, 1.0)
"""


def test_failing_environment_fails_only_its_own_conversation(api, tmp_path, monkeypatch):
    (file := tmp_path / "failing.py").write_text(FAILING)
    labels = ["fine", "edited", "unmade", "unsaid", "unrated", "unscored"]
    (data := tmp_path / "data.jsonl").write_text(
        "".join(json.dumps({"id": label, "prompt": "q", "label": label}) + "\n" for label in labels)
    )
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    command = ["--environment", str(file), "--data", str(data), "--base-url", api]
    command += ["--out", str(tmp_path / "out")]
    assert conversations.main([*command, "--model", "m", "--turns", "1"]) == 1
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["conversations"] == 6 and summary["failed"] == 4
    assert summary["reward"] == 0.5 and summary["ended_by_error"] == pytest.approx(4 / 6)
    records = list(map(json.loads, (tmp_path / "out" / "conversations.jsonl").read_text().splitlines()))
    for record, wrong in zip(records, [None, None, "constructor", "start", "score", "score"], strict=True):
        assert record["reward"] == (None if wrong else 0.5) and (record["ending"] == "error") == bool(wrong)
        assert wrong in record["error"] if wrong else "error" not in record
    assert "what no file can hold" in records[1]["messages"][-1]
    assert len(StandInAPI.seen) == 4, "no turn of what could not begin"
