"""The rung of the whole loop: how it divides the GPUs, what it asks of a run, and what it keeps."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo.run.run_log import RunLog
from grpo.stack.problem import UserError
from scripts.gpu_check import whole_loop


@pytest.mark.parametrize(("gpus", "workers", "actor"), [(2, "1", "1"), (3, "1", "2"), (4, "2", "2"), (8, "2", "2")])
def test_engines_and_actor_have_their_own_gpus_if_there_are_several(gpus: int, workers: str, actor: str) -> None:
    box, chosen = whole_loop.settings(gpus)
    assert (box, chosen["ENGINE_TP"], chosen["ACTOR_GPUS"]) == ([], workers, actor)
    assert int(workers) * int(chosen["NUM_ENGINES"]) + int(actor) <= gpus
    box, of_one = whole_loop.settings(1)
    assert box == ["--gpus", "1"] and "ACTOR_GPUS" not in of_one


def write_run(run_dir: Path, steps: int, **left_out: bool) -> Path:
    """Write what a run of so many steps leaves, except for what is left out."""
    compared = [n for n in (1, 2, whole_loop.STEPS + 1) if n <= steps and not left_out.get(f"comparison_{n}")]
    evaluated = [step for step in (0, 10) if step == 0 or not left_out.get("evaluation")]
    parts = {
        "parity": [
            {"step": n, "has_adapter": n > 1, "problems": [], "rows": [{"mean": {"value": n / 1000}}]} for n in compared
        ],
        "metrics": [
            {"step": step, "time": 1e12, "reward": step / 10, "seconds": {"generate": 1.0, "total": 2.0}}
            for step in range(1, steps + 1)
        ],
        "eval": [{"step": step, "exact_match": 0.5, "n": 8} for step in evaluated],
    }
    run_dir.mkdir(parents=True)
    for name, rows in parts.items():
        (run_dir / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if not left_out.get("checkpoint"):
        (run_dir / "checkpoints" / "step_10" / "adapter").mkdir(parents=True)
    (run_dir / "config.json").write_text(json.dumps({"flags": {"engine_model": "/models/mxfp4"}}))
    return run_dir


def test_a_loop_must_leave_everything(tmp_path: Path) -> None:
    numbers = whole_loop.verdict(write_run(tmp_path / "first", 10), 0, 10)
    assert numbers["mean_nat"] == [0.001, 0.002] and numbers["engine_model"] == "mxfp4"
    numbers = whole_loop.verdict(write_run(tmp_path / "resumed", 13), 0, 13)
    assert numbers["exact_match"] == {0: 0.5, 10: 0.5} and numbers["seconds"] == {"generate": 1.0, "total": 2.0}
    lacking = {
        "evaluation": "an evaluation",
        "checkpoint": "a checkpoint",
        "comparison_1": "an adapter of zero",
        "comparison_2": "an adapter that is not zero",
        "comparison_11": "after the resume",
    }
    for name, said in lacking.items():
        steps = 13 if name == "comparison_11" else 10
        with pytest.raises(UserError, match=f"ended without .*{said}"):
            whole_loop.verdict(write_run(tmp_path / name, steps, **{name: True}), 0, steps)
    with pytest.raises(UserError, match="ended without the steps 1 to 13"):
        whole_loop.verdict(write_run(tmp_path / "short", 12), 0, 13)
    with pytest.raises(UserError, match="ended with 3"):
        whole_loop.verdict(tmp_path / "first", 3, 10)
    problem = {"what": "all: mean difference of 0.3 nat", "remedy": "sinks dropped"}
    RunLog(str(tmp_path / "first")).write_parity({"has_adapter": False, "problems": [problem], "rows": []})
    with pytest.raises(UserError, match=r"mean difference of 0\.3 nat(.|\n)*sinks dropped"):
        whole_loop.verdict(tmp_path / "first", 3, 10)


@pytest.mark.parametrize(("rung_of", "eager"), [(whole_loop.eager, "1"), (whole_loop.graphs, "0")])
@pytest.mark.parametrize("fails", ["", "first", "resumed"])
def test_a_loop_is_resumed_and_kept_if_it_fails(monkeypatch, tmp_path: Path, rung_of, eager: str, fails: str) -> None:
    monkeypatch.setattr(whole_loop.tempfile, "mkdtemp", lambda **_: str(tmp_path / "made"))
    calls = []

    def run(command: list[str], env: dict[str, str], **rest: object) -> SimpleNamespace:
        assert command[:4] == ["./train_grpo.sh", "--tiny", "--gpus", "1"]
        assert (env["JUDGE"], env["ENFORCE_EAGER"]) == ("0", eager)
        calls.append(command[4:])
        run_dir, is_first = Path(command[7]), len(calls) == 1
        if not is_first:
            shutil.rmtree(run_dir)
        write_run(run_dir, 10 if is_first else 13)
        return SimpleNamespace(returncode=int(fails == ("first" if is_first else "resumed")))

    monkeypatch.setattr(whole_loop.subprocess, "run", run)
    if fails:
        with pytest.raises(UserError, match="ended with 1"):
            rung_of(1)
    else:
        passed = rung_of(1)
        assert "10 steps, and 3 after a resume, engine in mxfp4: reward 0.100 to 1.300" in passed.line
        run_dir = str(tmp_path / "made" / "tiny")
        assert calls == [["--steps", "10", "--run-dir", run_dir], ["--steps", "13", "--resume", run_dir]]
    assert (tmp_path / "made").exists() is bool(fails)
