"""Call one reward function of the user's own on one rollout, as the run will."""

import inspect
import math
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from reward import beside, user_files
from reward.user_files import ACCEPTED, ReturnError, read

_EXAMPLE = f"define {user_files.FUNCTION}(queries, prompts, labels); docs/reward.md has an example"


def call_once(path: Path, sample: dict[str, Any] | None) -> dict[str, Any]:
    """Return the reward of the rollout, or what is wrong with the file.

    Args:
        sample: `query`, `prompt` and `label`, and perhaps `bare`, the query of the right answer without a box, and
            `wrong`, that of a wrong answer; None to load the file and no more.

    Returns:
        `reward`, `score` and `logs`, and `bare` and `wrong`, the rewards of these; or `error` and `remedy`.
    """
    try:
        function = user_files.load(path)
    except SyntaxError as error:
        return _error(f"has a syntax error: {error.msg} ({error.filename}:{error.lineno})", "correct the file")
    except user_files.NoFunctionError:
        return _error(f"has no function {user_files.FUNCTION}", _EXAMPLE)
    except (Exception, SystemExit) as error:
        return _error(f"cannot be imported: {locate_error(error, path)}", beside.remedy(error))
    signature = inspect.signature(function)
    try:
        signature.bind([], [], [])
    except TypeError:
        return _error(f"has {user_files.FUNCTION}{signature}, which is not how it is called", _EXAMPLE)
    if sample is None:
        return {"logs": {}}
    result = _paid(function, path, sample)
    works = "error" not in result and max(result["reward"], result.get("bare", 0.0)) > result.get("wrong", math.inf)
    if not works and _is_foreign(signature):
        what = f"has {user_files.FUNCTION}{signature}, the arguments of another trainer; here they get other values"
        return _error(what, _EXAMPLE)
    return result


def _is_foreign(signature: inspect.Signature) -> bool:
    """Return whether the names are those of TRL or verl at places where we pass something else."""
    first, second, *_ = [*signature.parameters, "", ""]
    return first in ("prompts", "completions", "data_source") or second in ("completions", "solution_str")


def _paid(function: Callable[..., Any], path: Path, sample: dict[str, Any]) -> dict[str, Any]:
    """Return the reward of the right answer, and of the wrong one if there is one; or an error."""
    called = "the first line of the data"
    result = _call(function, path, sample, sample["query"], f"on {called}")
    if "error" in result:
        return result
    if math.isnan(result["reward"]):
        return _error(f"gives {called} no reward (None or NaN)", "return a number for it")
    if not math.isfinite(result["reward"]):
        return _error(f"returns the reward {result['reward']} on {called}", "return a finite number")
    if "wrong" not in sample:
        return result
    for name, what in (("bare", "an answer without a box"), ("wrong", "a wrong answer")):
        other = _call(function, path, sample, sample[name], f"on {what} to {called}")
        if "error" in other:
            return other
        result[name] = other["reward"]
    return result


def _call(function: Callable[..., Any], path: Path, sample: dict[str, Any], query: str, where: str) -> dict[str, Any]:
    """Return what the function returns for a query, or its error. It is called in a thread, as in the run."""
    try:
        with ThreadPoolExecutor(1) as thread:
            value = thread.submit(function, [query], [sample["prompt"]], [sample["label"]]).result()
    except (Exception, SystemExit) as error:
        return _error(f"fails {where}: {locate_error(error, path)}", "correct the file")
    try:
        returned = read(value, 1)
    except ReturnError as error:
        return _error(f"returns no reward {where}: {error}", ACCEPTED)
    return {"reward": returned.rewards[0], "score": returned.scores[0], "logs": returned.logs[0]}


def locate_error(error: BaseException, path: Path) -> str:
    """Return the last line of a traceback, and the last place in the user's file."""
    (line,) = traceback.format_exception_only(error)[-1:]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    location = f" ({path}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return line.strip() + location


def _error(what: str, remedy: str) -> dict[str, Any]:
    return {"error": what, "remedy": remedy}
