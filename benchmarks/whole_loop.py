"""The checks of the loop: `./train_grpo.sh --tiny` on the GPUs there are, briefly, then ten steps and a resume.

One GPU holds engine and actor. With several, they have their own. The run itself compares the log-probs of engines and
actor in its first step, whose adapter is zero, in its second, and in the first after a resume.
"""

import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.checks import Passed, note
from grpo.run.run_files import RunFiles, held_out, saved_steps
from grpo.stack.checkout import CHECKOUT
from grpo.stack.json_files import read_rows
from grpo.stack.problem import UserError

STEPS, MORE = 10, 3  # before and after the resume


def short(gpus: int) -> Passed:
    """Run three steps with engines that launch each kernel: one whose adapter is zero, and two after an update."""
    return _run(gpus, "--enforce_eager", 3)


def eager(gpus: int) -> Passed:
    """Run the loop with engines that launch each kernel."""
    return _run(gpus, "--enforce_eager", STEPS, MORE)


def graphs(gpus: int) -> Passed:
    """Run the loop with engines that replay CUDA graphs."""
    return _run(gpus, "--no-enforce_eager", STEPS, MORE)


def _run(gpus: int, enforce_eager: str, steps: int, more: int = 0) -> Passed:
    # Outside of TMPDIR, which is deleted with the check: the run directory is kept if the run fails.
    run_dir = Path(tempfile.mkdtemp(prefix="gpu-check-run-", dir="/tmp"), "tiny")
    parts = [(steps, ["--tiny", *_list_flags(gpus), enforce_eager, "--run-dir", run_dir])]
    parts += [(steps + more, ["--resume", run_dir])] if more else []
    for until, options in parts:
        begin = time.time()
        command = ["./train_grpo.sh", *map(str, options), "--steps", str(until)]
        print(*command, flush=True)
        code = subprocess.run(command, cwd=CHECKOUT, stdin=subprocess.DEVNULL).returncode
        numbers = verdict(run_dir, code, until, 0 if until == steps else steps)
        first = next(row for row in read_rows(RunFiles(run_dir).metrics) if row["time"] > begin)
        numbers["start_s"] = first["time"] - first["seconds"]["total"] - begin
        note(**{f"until step {until}": numbers})
    shutil.rmtree(run_dir.parent)
    means, rewards = ", ".join(f"{mean:.4f}" for mean in numbers["mean_nat"]), numbers["reward"]
    line = f"{steps} steps" + (f", and {more} after a resume" if more else "")
    line += f", engine in {numbers['engine_model']}: reward {rewards[0]:.3f} to {rewards[-1]:.3f}, comparisons {means} "
    line += f"nat apart; a step {numbers['seconds']['total']:.1f} s, started in {numbers['start_s']:.0f} s"
    return Passed(line, numbers)


def _list_flags(gpus: int) -> list[str]:
    """Return the box, and what else differs from a run."""
    flags = ["--no-judge", "--restarts", "0", "--sigterm_seconds", "0", "--stage3_param_persistence_threshold", "0"]
    if gpus <= 1:
        return [*flags, "--gpus", "1"]
    counts = {"vllm_num_engines": 1, "vllm_tensor_parallel_size": 2 if gpus >= 4 else 1}
    counts["actor_num_gpus_per_node"] = 2 if gpus - counts["vllm_tensor_parallel_size"] >= 2 else 1
    return [*flags, *(word for name, count in counts.items() for word in (f"--{name}", str(count)))]


def verdict(run_dir: Path, code: int, steps: int, resumed: int = 0) -> dict[str, Any]:
    """Judge an ended run by its exit code and by what it wrote; return its numbers.

    Args:
        steps: that the run has.
        resumed: after this step; 0 if it was not.
    """
    files = RunFiles(run_dir)
    rows, metrics = read_rows(files.parity), read_rows(files.metrics)
    if problems := [problem for row in rows for problem in row["problems"]]:
        remedy = f"{problems[0]['remedy']}; see docs/parity.md and {run_dir}"
        raise UserError(f"engines and actor are not the same policy: {problems[0]['what']}", remedy)
    if code:
        raise UserError(f"the run ended with {code}", f"see {run_dir}/logs, and docs/first-evening.md for a report")
    evaluations, saved = held_out(files.evals), saved_steps(files.find_folder("ckpt_path", files.read_config()))
    missing = {
        f"the steps 1 to {steps}": [row["step"] for row in metrics] != list(range(1, steps + 1)),
        "a comparison with an adapter of zero": not any(not row["has_adapter"] for row in rows),
        "a comparison with an adapter that is not zero": not any(row["has_adapter"] for row in rows),
        "an evaluation after the first step": not any(evaluations),
        "a checkpoint": not saved,
        "a comparison after the resume": bool(resumed) and not any(row["step"] > resumed for row in rows),
    }
    if lacking := [name for name, is_missing in missing.items() if is_missing]:
        raise UserError(f"the run ended without {' and '.join(lacking)}", f"look at {run_dir}/logs")
    phases = metrics[-1]["seconds"]
    return {
        "mean_nat": [row["rows"][0]["mean"]["value"] for row in rows],
        "reward": [row["reward"] for row in metrics],
        "exact_match": evaluations,
        "seconds": {name: statistics.median(row["seconds"].get(name, 0.0) for row in metrics[1:]) for name in phases},
        "engine_model": Path(files.read_config()["flags"]["engine_model"]).name,
    }
