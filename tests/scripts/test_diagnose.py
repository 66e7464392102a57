"""The command: what it prints, and its exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import diagnose
from tests.grpo.diagnosis.synthetic_ills import ILLS
from tests.grpo.diagnosis.synthetic_runs import make_run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_dir(tmp_path):
    run = make_run(2_000_000, ("judge_outage", ILLS["judge_outage"]), least=60)
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in run.rows) + '{"step": 9')
    (tmp_path / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in run.evals))
    (tmp_path / "config.json").write_text(json.dumps(run.config))
    return tmp_path, run


def test_report_lists_findings_passed_rules_and_rules_not_judged(run_dir, capsys):
    folder, run = run_dir
    rows = [{key: value for key, value in row.items() if key != "entropy"} for row in run.rows]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert diagnose.main([str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"judge outage, steps {run.onsets['judge_outage']} to" in out and "judge_failed" in out
    assert "likely cause:" in out and "try JUDGE_MODELS" in out
    assert "in order:" in out and "not judged:" in out and "entropy is missing in metrics.jsonl" in out


def test_json_matches_the_report(run_dir, capsys):
    folder, run = run_dir
    assert diagnose.main([str(folder), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    findings = {finding["name"]: finding for finding in report["findings"]}
    assert report["steps"] == len(run.rows)
    assert findings["judge_outage"]["onset"] == run.onsets["judge_outage"]
    assert findings["judge_outage"]["evidence"][0]["numbers"]["mean"] > 0.2
    assert {"setting", "change", "why"} == set(findings["judge_outage"]["actions"][0])


def test_a_clean_run_begins_with_its_verdict_and_counts_one_step_as_one(tmp_path, capsys):
    rows = [{"step": step, "actor_lr": 1e-6 * min(step / 2, 1), "correct": 0.5} for step in range(1, 9)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert diagnose.main([str(tmp_path)]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert "the first step is the warmup" in first and second.startswith("No findings; ")


def test_range_has_one_text_and_a_free_cut_shows_no_cost(tmp_path, capsys):
    row = {"actor_lr": 1e-6, "ppo_kl": 0.07, "truncated": 0.6, "correct": 0.5, "correct_whole": 0.5}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({"step": n, **row}) + "\n" for n in range(1, 9)))
    assert diagnose.main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "range from -0.05 to 0.05" in out and "lost by the cut" not in out and "No findings" not in out


def test_exit_codes(run_dir, capsys):
    folder, _ = run_dir
    assert diagnose.main([str(folder / "none")]) == 2
    assert "none is not a folder" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        diagnose.main([])
    assert end.value.code == 2


def test_it_starts_without_torch(run_dir):
    """A look at a run must not take the seconds and the memory of the training stack."""
    code = "import sys; from scripts import diagnose; sys.exit(bool({'torch', 'ray', 'vllm'} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_a_run_without_a_step_is_waited_for_only_while_it_runs(make_run, capsys):
    run = make_run()
    run.hold()
    assert diagnose.main([str(run.folder)]) == 2
    assert "has no complete step yet: wait for the first one" in capsys.readouterr().err
    run.let_go(1)
    assert diagnose.main([str(run.folder)]) == 2
    assert "ended before its first step: read the end of" in capsys.readouterr().err
