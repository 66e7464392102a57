"""Checks everything that can fail before Ray starts, each with its remedy. Takes seconds and no torch."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo.launch import flags, gpu_limits
from grpo.launch.checks.data import check_data
from grpo.launch.checks.environment import check_environment
from grpo.launch.checks.machine import (
    check_disk,
    check_gpus,
    check_is_new,
    check_limits,
    check_memory,
    check_ray,
)
from grpo.launch.checks.model import check_model, check_released
from grpo.launch.checks.packages import check_packages
from grpo.launch.checks.reward import check_reward
from grpo.launch.checks.thinking import check_thinking
from grpo.launch.config import Config
from grpo.launch.plan import Plan
from grpo.run import trackers
from grpo.run.measure import OUR_REWARD, USER_REWARD
from grpo.settings.flags import find_setting_name
from grpo.stack.checkout import CHECKOUT
from grpo.stack.problem import Problem


def problems(config: Config, plan: Plan, run_dir: Path, is_resumed: bool = False) -> list[Problem]:
    """Run every check. An empty list means that the run can start, or continue if `is_resumed`."""
    checks = (
        check_gpus(config, plan),  # first: without GPUs the rest does not matter
        check_packages(),
        check_patches(),
        check_flags(config),
        check_data(config),
        check_environment(config),
        check_reward(config),
        check_model(config),
        check_thinking(config),
        check_memory(plan),
        check_limits(),
        () if is_resumed else check_is_new(config, run_dir),
        check_disk(config, plan, run_dir),
        check_ray(),
        check_trackers(config),
    )
    return [problem for check in checks for problem in check]


def problems_anywhere(config: Config) -> list[Problem]:
    """Run the checks that do not depend on the machine. A model and problems that are not here are not missed."""
    models = [Path(name) for name in (config.args.pretrain, config.args.engine_model) if name]
    are_here = all(model.exists() for model in models)
    return [
        *check_flags(config),
        *gpu_limits.problems(config),
        *check_data(config, is_missed=False),
        *check_environment(config),
        *check_reward(config),
        *(check_model(config) if are_here else check_released(config)),
        *check_thinking(config),
    ]


def check_flags(config: Config) -> Iterator[Problem]:
    """Refuse what the patched trainer refuses, and some values that it would miss."""
    args = config.args
    yield from flags.problems(args)
    if args.logging_steps < 1:
        yield Problem(f"--logging_steps is {args.logging_steps}", "give 1 or more")
    if args.eval_dataset and not args.remote_rm_url and not args.agent_func_path:
        yield Problem("evaluations need a reward function", "set REWARD to a .py file with reward_func")
    for flag, package in trackers.missing_packages(args):
        yield Problem(
            f"{find_setting_name(f'--{flag}')} needs {package}, which is not installed",
            trackers.INSTALL.get(package, "run scripts/setup.sh"),
        )
    for script in (args.remote_rm_url or "").split(","):
        if script and not script.endswith(".py") and not script.startswith(("http://", "https://")):
            yield Problem(
                f"REWARD {script} is neither a .py file nor a URL", "set REWARD to a .py file with reward_func"
            )
        elif script.endswith(".py") and Path(script).resolve() not in (OUR_REWARD, USER_REWARD):
            yield Problem(f"--remote_rm_url {script} would run unchecked", f"set REWARD={script} instead")


def check_trackers(config: Config) -> Iterator[Problem]:
    """Check that the trackers can start; the run would go on without them."""
    if config.args.use_wandb and (problem := trackers.wandb_problem()):
        yield problem
    if config.args.use_trackio and (fault := trackers.trackio_fault()):
        yield Problem(f"Trackio cannot be imported: {fault}", f"{trackers.INSTALL['trackio']}, or set USE_TRACKIO=0")


def patch_status() -> dict[str, Any]:
    """Return the output of `python -m patches status --json`; if it fails, state "unknown" and that output."""
    done = subprocess.run(
        [sys.executable, "-m", "patches", "status", "--json"], cwd=CHECKOUT, capture_output=True, text=True
    )
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"state": "unknown", "message": (done.stderr or done.stdout).strip()}


def check_patches() -> Iterator[Problem]:
    """Refuse anything but the whole, unchanged series."""
    status = patch_status()
    if status.get("state") != "applied":
        remedy = status.get("next") or "./apply_patches.sh status"
        what = status.get("message") or status.get("error")
        yield Problem(f"OpenRLHF's patches are not applied: {what}", remedy)
    elif status["digest"] != status["expected_digest"]:
        yield Problem("the patched OpenRLHF differs from what the patches produce", "run ./apply_patches.sh verify")
