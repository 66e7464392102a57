"""Common behavior of all command lines of this project."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from data import prepare
from eval import compare, evaluate, table
from grpo.checkpoint import digests
from scripts import diagnose, export_model, make_tiny_model, watch
from scripts.report import __main__ as report

ROOT = Path(__file__).parents[2]
FOLDERS = ("data", "eval", "grpo", "patches", "scripts", "benchmarks")


def list_parsers() -> list[tuple[str, ast.Call]]:
    """Every place that makes a parser, and the call."""
    calls = []
    for file in sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "argparse.ArgumentParser":
                calls.append((f"{file.relative_to(ROOT)}:{node.lineno}", node))
    return calls


def test_no_parser_takes_abbreviations() -> None:
    calls = list_parsers()
    assert calls
    settings = {location: {word.arg: ast.unparse(word.value) for word in call.keywords} for location, call in calls}
    assert [location for location, words in settings.items() if words.get("allow_abbrev") != "False"] == []


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (prepare, ["--source", "none.jsonl", "--out", "out"]),
        (prepare, ["--source", "synthetic", "--out", "file"]),
        (compare, ["none", "none"]),
        (evaluate, ["--model", "none", "--data", "none", "--n", "1", "--out", "out"]),
        (table, ["none"]),
        (export_model, ["--model", "none", "--experts", "bf16", "--out", "out"]),
        (export_model, ["--model", "none", "--out", "out"]),
        (diagnose, ["none"]),
        (export_model, ["--model", "none", "--adapter", "none", "--out", "out"]),
        (make_tiny_model, ["--out", "file"]),
        (watch, ["none"]),
        (watch, ["."]),
        (report, ["none", "--out", "out"]),
    ],
)
def test_bad_input_is_exit_code_2_with_a_reason(
    tool: ModuleType, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert tool.main(words) == 2
    printed = capsys.readouterr()
    assert printed.err.strip() and not printed.out
    assert "out" not in {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    "name",
    [
        "metrics.jsonl",
        *("eval.jsonl", "parity.jsonl", "ends.jsonl", "resumes.jsonl", ".lock", "config.json", "env.json"),
        *("logs/lost-writes.json", "samples/step_1.jsonl", "samples/eval_1.jsonl"),
    ],
)
def test_no_tool_waits_for_a_file_without_end(name: str, make_run, tmp_path: Path, capsys) -> None:
    run = make_run()
    run.step(1)
    folder = run.folder
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    path = str(folder)
    codes = [
        watch.main([path, "--once"]),
        diagnose.main([path]),
        report.main([path, "--out", str(tmp_path / "report.html")]),
        table.main([path]),
        compare.main([f"{path}/samples/eval_1.jsonl", f"{path}/samples/eval_1.jsonl"]),
    ]
    assert set(codes) <= {0, 1, 2}
    said = capsys.readouterr().err
    assert name in said or name in (".lock", "logs/lost-writes.json", "env.json"), codes


@pytest.mark.parametrize("name", ["SHA256SUMS", "adapter_config.json", "adapter_model.safetensors"])
def test_no_tool_waits_for_an_adapter_without_end(name: str, adapter: Path, base: Path, capsys) -> None:
    digests.write(adapter)
    (adapter / name).unlink()
    os.mkfifo(adapter / name)
    out = str(adapter.parent / "out")
    assert export_model.main(["--model", str(base), "--adapter", str(adapter), "--out", out]) == 2
    assert name in capsys.readouterr().err


@pytest.mark.parametrize("tool", ["diagnose", "report", "watch", "make_tiny_model"])
def test_closed_pipe_ends_a_command_without_a_traceback(tool: str, make_run, tmp_path: Path) -> None:
    run = make_run()
    run.step(1)
    outside, inside = os.pipe()
    os.close(outside)
    words = ["--out", str(tmp_path / "tiny")] if tool == "make_tiny_model" else [str(run.folder)]
    command = [sys.executable, "-m", f"scripts.{tool}", *words]
    ended = subprocess.run(command, cwd=ROOT, stdout=inside, stderr=subprocess.PIPE, text=True)
    os.close(inside)
    assert (ended.returncode, ended.stderr) == (-signal.SIGPIPE, "")
