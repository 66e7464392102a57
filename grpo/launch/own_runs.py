"""Code and addresses that a run folder names are used if this checkout has recorded them for that folder.

Somebody else may have written or changed a run folder. To resume it would run the reward file that it names, and send
the judge's key to the address that it names. The record lies in the checkout's cache, where no run folder reaches.
"""

import contextlib
import hashlib
import shlex
from collections.abc import Mapping
from pathlib import Path

from grpo.stack.checkout import CHECKOUT
from grpo.stack.problem import UserError

_NAMES = ("REWARD", "ENVIRONMENT", "JUDGE_BASE_URL")
_HARMLESS = {"python", "retrieval", "single"}  # words of ENVIRONMENT that are no code of somebody's


def record(folder: Path, settings: Mapping[str, str]) -> None:
    """Record what the settings of a run in this folder name. Without a record, a resume asks for it again."""
    with contextlib.suppress(OSError):  # a checkout that is only read
        for name in _NAMES:
            if name in settings:
                file = _find_record(folder, name, settings[name])
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()


def refuse_others(folder: Path, settings: Mapping[str, str]) -> None:
    """Refuse code and addresses that only a run folder names.

    Args:
        settings: those that the run folder names, and the user has not given again.

    Raises:
        UserError: if the checkout has no record of one of them.
    """
    named = {name: settings[name] for name in _NAMES if not set(settings.get(name, "").split()) <= _HARMLESS}
    unknown = {name: value for name, value in named.items() if not _find_record(folder, name, value).exists()}
    if unknown:
        given = " ".join(f"{name}={shlex.quote(value)}" for name, value in unknown.items())
        raise UserError(
            f"{folder} names {given}, and this checkout has not made a run with that there",
            f"if you trust it, give it again: {given} ./train_grpo.sh --resume {shlex.quote(str(folder))}",
        )


def _find_record(folder: Path, name: str, value: str) -> Path:
    digest = hashlib.sha256("\0".join((str(folder), name, value)).encode()).hexdigest()
    return CHECKOUT / ".cache" / "own-runs" / digest
