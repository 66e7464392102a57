"""The reward that OpenRLHF calls if REWARD names files of the user's own: the weighted sum of their rewards.

OpenRLHF loads this file by its path in each engine, and calls `reward_func` in a thread, one rollout at a time. Nothing
raises there: OpenRLHF turns an exception into a missing reward without a traceback. A rollout on which a function fails
says so in `reward_error`, and its reward is NaN: `grpo.train.rewards.complete` leaves it out of the update. The first
error of each kind is logged with its traceback.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from reward import user_files
from reward.user_files import Returned, RewardFile, read

logger = logging.getLogger(__name__)

Reward = tuple[str, float, Callable[..., Any]]  # a file's name, its weight, and its function
_logged_kinds: set[tuple[str, str]] = set()


def load(files: Sequence[RewardFile]) -> list[Reward]:
    """Return the functions of files, to call them with :func:`combine`."""
    return [(one.name, one.weight, user_files.load(one.path)) for one in files]


# An engine loads this file when it starts, so a file that cannot be loaded ends the run there.
_REWARDS = load(user_files.from_environment())


def reward_func(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]) -> dict[str, Any]:
    """Reward n rollouts: `queries` are prompt + response with special tokens, `prompts` the prompts as sent."""
    return combine(_REWARDS, queries, prompts, labels)


def combine(
    functions: Sequence[Reward], queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]
) -> dict[str, Any]:
    """Return the rewards of n samples by several functions.

    Returns `rewards` and `scores`, each the weighted sum over the functions, and `extra_logs`: `reward_error`,
    `reward_seconds`, and what the functions log. Of several functions, each has `reward.NAME`, its reward before its
    weight, and its logs begin with NAME. Each value is a float for one rollout, and a list of n floats for any other n.
    """
    started, count = time.monotonic(), len(queries)
    returned = [_call(name, function, (queries, prompts, labels)) for name, _, function in functions]
    weights = [weight for _, weight, _ in functions]
    rewards = _weigh_columns([one.rewards for one in returned], weights)
    logs: dict[str, list[float]] = {}
    for (name, _, _), one in zip(functions, returned, strict=True):
        prefix = f"{name}." if len(functions) > 1 else ""
        if prefix:
            logs[f"reward.{name}"] = one.rewards
        for key in one.logs[0] if one.logs else ():
            logs[prefix + key] = [sample[key] for sample in one.logs]
    logs["reward_error"] = [float(not math.isfinite(reward)) for reward in rewards]
    logs["reward_seconds"] = [time.monotonic() - started] * count
    columns = {"rewards": rewards, "scores": _weigh_columns([one.scores for one in returned], weights)}
    if count == 1:
        first = {name: column[0] for name, column in columns.items()}
        return {**first, "extra_logs": {name: column[0] for name, column in logs.items()}}
    return {**columns, "extra_logs": logs}


def _call(name: str, function: Callable[..., Any], arguments: tuple[Sequence[Any], ...]) -> Returned:
    """Return a function's rewards; NaN for each rollout if it raises or returns something else."""
    count = len(arguments[0])
    try:
        return read(function(*(list(argument) for argument in arguments)), count)
    except (Exception, SystemExit) as error:  # the boundary to OpenRLHF: see the module's docstring
        kind = (name, type(error).__name__)
        if kind not in _logged_kinds:
            _logged_kinds.add(kind)
            logger.error("the reward %s failed on a rollout; more such errors are counted", name, exc_info=error)
        return Returned([math.nan] * count, [math.nan] * count, [{} for _ in range(count)])


def _weigh_columns(columns: Sequence[Sequence[float]], weights: Sequence[float]) -> list[float]:
    return [
        sum(weight * value for weight, value in zip(weights, row, strict=True))  # not fsum: it raises for inf - inf
        for row in zip(*columns, strict=True)
    ]
