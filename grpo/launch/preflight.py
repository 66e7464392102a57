"""What is checked and said before anything starts: each fault with its remedy, in seconds and without torch."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo.launch import cost, flags, gpu_memory, judge
from grpo.launch.checks import reward, software
from grpo.launch.checks.data import check_data
from grpo.launch.checks.environment import check_environment
from grpo.launch.checks.machine import check_disk, check_gpu_memory, check_gpus, check_is_new, check_memory, check_ray
from grpo.launch.checks.model import check_model, check_thinking
from grpo.launch.config import Config
from grpo.launch.judge import RunJudge
from grpo.launch.plan import Plan
from grpo.launch.plan import describe as describe_plan
from grpo.run import trackers
from grpo.stack.checkout import CHECKOUT
from grpo.stack.problem import Problem


def problems(config: Config, plan: Plan, run_dir: Path, is_resumed: bool = False) -> list[Problem]:
    """Run every check. An empty list means that the run can start, or continue if `is_resumed`."""
    checks = (
        check_gpus(config, plan),  # first: without GPUs the rest does not matter
        software.check_packages(),
        software.check_kernel(),
        check_patches(),
        _check_settings(config),
        check_memory(plan),
        () if is_resumed else check_is_new(config, run_dir),
        check_disk(config, plan, run_dir),
        check_ray(),
        trackers.problems(config.args),
    )
    return list(dict.fromkeys(problem for check in checks for problem in check))


def problems_anywhere(config: Config) -> list[Problem]:
    """Run the checks that do not depend on the machine. A model and problems that are not here are not missed."""
    return list(dict.fromkeys([*_check_settings(config, is_missed=False), *check_gpu_memory(config)]))


def describe(plan: Plan, config: Config, run_judge: RunJudge) -> list[str]:
    """Return what a run is, in lines for people: its plan, its reward, its cost."""
    return [
        software.describe(),
        *describe_plan(plan, config),
        *gpu_memory.describe(config),
        *reward.describe(config),
        *judge.describe(run_judge, config),
        *cost.describe(plan, config, run_judge),
    ]


def _check_settings(config: Config, is_missed: bool = True) -> Iterator[Problem]:
    yield from flags.problems(config.args)
    yield from check_data(config, is_missed)
    yield from check_environment(config)
    yield from reward.check_reward(config)
    yield from check_model(config, is_missed)
    yield from check_thinking(config)


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
        what = f"OpenRLHF's patches are not applied: {status.get('message') or status.get('error')}"
        yield Problem(what, status.get("next") or "./apply_patches.sh status")
