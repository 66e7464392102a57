"""The last rung: three steps of `./train_grpo.sh --tiny` on GPUs, and what its parity gate found."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from grpo.run.run_files import RunFiles
from grpo.stack.checkout import CHECKOUT, TINY_MODEL
from grpo.stack.json_files import read_rows
from grpo.stack.problem import UserError
from scripts.gpu_check.rung import Passed


def settings(gpus: int) -> dict[str, str]:
    """Return what differs from the tiny run on a CPU: engines with MXFP4, with TP=2 where four GPUs are."""
    workers = 2 if gpus >= 4 else 1
    return {
        "ENGINE_MODEL": str(TINY_MODEL / "mxfp4"),
        "NUM_ENGINES": "1",
        "ENGINE_TP": str(workers),
        "ACTOR_GPUS": str(2 if gpus - workers >= 2 else 1),
        "GPU_MEMORY_UTILIZATION": "0.3",
        "JUDGE": "0",
    }


def check(gpus: int) -> Passed:
    """Run the whole stack for three steps. The run directory is kept if it fails."""
    run_dir = Path(tempfile.mkdtemp(prefix="gpu-check-run-"), "tiny")
    command = ["./train_grpo.sh", "--tiny", "--steps", "3", "--run-dir", str(run_dir)]
    code = subprocess.run(command, cwd=CHECKOUT, env=os.environ | settings(gpus), stdin=subprocess.DEVNULL).returncode
    passed = verdict(run_dir, code)
    shutil.rmtree(run_dir.parent)
    return passed


def verdict(run_dir: Path, code: int) -> Passed:
    """Judge an ended run by its exit code and by the lines of its parity gate."""
    rows = read_rows(RunFiles(run_dir).parity)
    if problems := [problem for row in rows for problem in row["problems"]]:
        remedy = f"{problems[0]['remedy']}; see docs/parity.md and {run_dir}"
        raise UserError(f"engines and actor are not the same policy: {problems[0]['what']}", remedy)
    if code:
        raise UserError(f"the run ended with {code}", f"python -m scripts.bundle {run_dir} packs it for a report")
    compared = [row for row in rows if row["has_adapter"]]
    if not compared:
        raise UserError("the gate never compared an adapter that is not zero", f"look at {run_dir}/logs")
    means = [row["rows"][0]["mean"] for row in rows]
    shown = ", ".join(f"{mean:.4f}" for mean in means)
    return Passed(f"{len(rows)} comparisons: {shown} nat apart in the mean", {"mean_nat": means})
