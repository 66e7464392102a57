"""Flags and variables that contradict each other, or that would only fail after loading."""

from collections.abc import Callable, Iterator
from pathlib import Path

from grpo.launch import flags
from grpo.launch.config import Config
from grpo.run import trackers
from grpo.run.measure import OUR_REWARD, USER_REWARD
from grpo.stack.problem import Problem
from grpo.stack.variables import in_variables

# Flag -> what its value must be, in words and as a test. None (not given) passes.
_RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "top_p": ("a share above 0, up to 1", lambda value: 0 < value <= 1),
    "eval_temperature": ("0 or more", lambda value: value >= 0),
    "eps_clip": ("more than 0", lambda value: value > 0),
    "lr_warmup_ratio": ("a share from 0 to 1", lambda value: 0 <= value <= 1),
    "max_norm": ("0 (no clipping) or more", lambda value: value >= 0),
    "gpu_gb": ("more than 0", lambda value: value > 0),
    "lora_alpha": ("1 or more", lambda value: value >= 1),
    "stage3_param_persistence_threshold": ("0 or more", lambda value: value >= 0),
    "eval_steps": ("1 or more, or -1 for no evaluation", lambda value: value >= 1 or value == -1),
    "save_steps": ("1 or more, or -1 for no checkpoint", lambda value: value >= 1 or value == -1),
    "max_ckpt_num": ("1 or more", lambda value: value >= 1),
    "logging_steps": ("1 or more", lambda value: value >= 1),
    "seed": ("from 0 to 4294967295", lambda value: 0 <= value < 2**32),
}


def check_flags(config: Config) -> Iterator[Problem]:
    """Refuse what the patched trainer refuses, and some values that it would miss."""
    args = config.args
    for problem in flags.problems(args):
        yield Problem(in_variables(problem.what), in_variables(problem.remedy))
    for name, (wanted, is_good) in _RANGES.items():
        value = getattr(args, name)
        if value is not None and not is_good(value):
            yield Problem(in_variables(f"--{name} is {value:g}"), f"give {wanted}")
    if args.eval_dataset and not args.remote_rm_url and not args.agent_func_path:
        yield Problem("evaluations need a reward function", "set REWARD to a .py file with reward_func")
    for flag, package in trackers.missing_packages(args):
        yield Problem(
            f"{in_variables(f'--{flag}')} needs {package}, which is not installed",
            trackers.INSTALL.get(package, "run scripts/setup.sh"),
        )
    for script in (args.remote_rm_url or "").split(","):
        if script and not script.endswith(".py") and not script.startswith(("http://", "https://")):
            yield Problem(
                f"REWARD {script} is neither a .py file nor a URL", "set REWARD to a .py file with reward_func"
            )
        elif script.endswith(".py") and Path(script).resolve() not in (OUR_REWARD, USER_REWARD):
            yield Problem(f"--remote_rm_url {script} would run unchecked", f"set REWARD={script} instead")
