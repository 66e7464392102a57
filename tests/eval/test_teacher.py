"""The teacher's baseline through the real client, against the stand-in for Gemini, which answers the count of "="."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eval import compare, teacher
from reward.settings import KEY_VARIABLES, STAND_IN_VARIABLE
from tests.reward.gemini_server import GeminiServer, error, says

ROOT = Path(teacher.__file__).parents[1]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GeminiServer]:
    with GeminiServer() as server:
        for name in KEY_VARIABLES:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(STAND_IN_VARIABLE, server.url)
        yield server


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """Four problems, of which the stand-in gets three right."""
    rows = [
        {"id": f"p{n}", "prompt": f"How many? {'=' * n}", "label": str(min(n, 2)), "datasource": "sums"}
        for n in range(4)
    ]
    data = tmp_path / "eval.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--model", "a-model", "--data", str(data), "--out", str(tmp_path / "out"), "--n", "2", "--tries", "1"]
    return [*options, "--requests-per-minute", "100", "--deadline", "20"]


def read_result(tmp_path: Path) -> dict:
    return json.loads((tmp_path / "out" / "result.json").read_text())


def test_a_model_answers_and_is_graded(server, command, tmp_path, capsys, monkeypatch):
    assert teacher.main([*command, "--k", "1", "2"]) == 0
    metrics = read_result(tmp_path)
    assert (metrics["exact_match"], metrics["n"], metrics["samples"], metrics["truncated"]) == (0.75, 4, 8, 0.0)
    assert metrics["pass_at_k"]["2"]["value"] == 0.75 and metrics["response_length"] > 0
    said = capsys.readouterr()
    assert "0.750" in said.out and f"a local stand-in at {server.url} answers instead of Gemini" in said.err
    assert [request.body["contents"][0]["parts"][0]["text"] for request in server.requests].count("How many? ===") == 2
    assert "stand-in" in (tmp_path / "out" / "config.json").read_text()
    assert all("temperature" not in request.body["generationConfig"] for request in server.requests)
    before, server.models = len(server.requests), []
    assert teacher.main(command) == 0 and len(server.requests) == before, "all is kept, and the model not looked up"
    assert compare.main([str(tmp_path / "out"), str(tmp_path / "out")]) == 0
    monkeypatch.delenv(STAND_IN_VARIABLE)
    assert teacher.main(command) == 2 and "export GEMINI_API_KEY" in capsys.readouterr().err


def test_an_answer_that_is_cut_is_no_whole_answer(server, command, tmp_path):
    server.plan = lambda number, model: says("half", "MAX_TOKENS")
    assert teacher.main([*command, "--limit", "1", "--n", "1"]) == 0
    [request] = server.requests
    assert request.body["generationConfig"]["maxOutputTokens"] == 32_768
    assert read_result(tmp_path)["truncated"] == 1.0


def test_missing_answers_are_requested_again_or_counted(server, command, tmp_path, capsys):
    server.plan = lambda number, model: error(400, "blocked") if server.requests and number < 3 else None
    assert teacher.main(command) == 1
    assert "blocked" in capsys.readouterr().err
    assert not (tmp_path / "out" / "result.json").exists()
    server.plan = lambda number, model: says("", "SAFETY") if number == 8 else None
    assert teacher.main(command) == 1  # asked for the three that are missing
    assert len(server.requests) == 11
    server.plan = lambda number, model: says("", "SAFETY")
    assert teacher.main([*command, "--count-unanswered"]) == 0
    assert read_result(tmp_path)["no_answer"] == pytest.approx(1 / 8)


def test_a_killed_baseline_continues(server, command, tmp_path):
    server.latency = 0.3
    child = subprocess.Popen([sys.executable, "-m", "eval.teacher", *command, "--concurrency", "1"], cwd=ROOT)
    samples = tmp_path / "out" / "samples.jsonl"
    try:
        while not (samples.exists() and samples.read_bytes().count(b"\n") >= 3):
            assert child.poll() is None
            time.sleep(0.01)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    kept = samples.read_bytes().count(b"\n")
    assert teacher.main(command) == 0
    assert len(server.requests) <= 8 + 1 and kept >= 3  # one was in flight
    assert read_result(tmp_path)["exact_match"] == 0.75


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n", "0"], "--n is 0"), (["--k", "3"], "pass@3"), (["--limit", "0"], "--limit"),
        (["--data", "x"], "x cannot"),
    ],
)  # fmt: skip
def test_bad_options_are_refused(server, command, options, message, capsys):
    assert teacher.main([*command, *options]) == 2
    assert message in capsys.readouterr().err
    assert not server.requests


def test_unknown_model_is_rejected_and_the_folder_accepts_the_right_one(server, command, capsys):
    server.models = ["a-model", "gemini-3.1-pro-preview"]
    assert teacher.main([*command, "--model", "a-modle"]) == 2
    assert "a-modle: 404" in capsys.readouterr().err and not server.requests
    assert teacher.main(command) == 0
