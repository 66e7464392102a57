"""Flags and variables that contradict each other, or that would only fail after loading."""

from collections.abc import Iterator
from pathlib import Path

from grpo.launch import flags
from grpo.launch.config import Config
from grpo.run import trackers
from grpo.run.measure import OUR_REWARD, USER_REWARD
from grpo.settings.flags import name_of
from grpo.stack.problem import Problem


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
            f"{name_of(f'--{flag}')} needs {package}, which is not installed",
            trackers.INSTALL.get(package, "run scripts/setup.sh"),
        )
    for script in (args.remote_rm_url or "").split(","):
        if script and not script.endswith(".py") and not script.startswith(("http://", "https://")):
            yield Problem(
                f"REWARD {script} is neither a .py file nor a URL", "set REWARD to a .py file with reward_func"
            )
        elif script.endswith(".py") and Path(script).resolve() not in (OUR_REWARD, USER_REWARD):
            yield Problem(f"--remote_rm_url {script} would run unchecked", f"set REWARD={script} instead")
