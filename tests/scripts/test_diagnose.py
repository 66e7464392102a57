"""The command: what it prints, and its exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import diagnose
from tests.grpo.diagnosis.made_runs import make

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows, evals, config = make(1, "diverged")
    rows[3]["entropy"] = int("9" * 400)
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 9')
    (tmp_path / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evals))
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_text_and_json_say_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose.main([str(folder)]) == 0
    text = capsys.readouterr().out
    assert diagnose.main([str(folder), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    first = report["findings"][0]
    assert set(first) == {"name", "tier", "severity", "step", "value", "text", "remedy"}
    assert "instability" in {one["name"] for one in report["findings"]}
    assert all(one["text"] in text and all(line in text for line in one["remedy"]) for one in report["findings"])
    assert text.startswith(f"{report['steps']} steps\n")


def test_it_starts_without_torch() -> None:
    """A look at a run must not take the seconds and the memory of the training stack."""
    code = "import sys; from scripts import diagnose; sys.exit(bool({'torch', 'ray', 'vllm'} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_run_without_a_step_is_waited_for_only_while_it_runs(make_run, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run()
    run.hold()
    assert diagnose.main([str(run.folder)]) == 2
    assert "no complete step" in capsys.readouterr().err
    run.let_go(1)
    assert diagnose.main([str(run.folder)]) == 2
    assert "before its first step" in capsys.readouterr().err
