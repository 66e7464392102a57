"""Code, addresses and disks that a run folder names are used if this checkout has recorded them for that folder.

Somebody else may have written or changed a run folder. To resume it would run the reward file that it names, send the
judge's key to the address that it names, and remove checkpoints from the disk that it names. The record lies in the
checkout's cache, where no run folder reaches.
"""

import contextlib
import hashlib
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from grpo.run.run_files import RunFiles
from grpo.stack.checkout import CHECKOUT
from grpo.stack.problem import UserError

PLACES = ("ckpt_path", "metrics_dir")
_NAMES = ("remote_rm_url", "agent_func_path", "environment", "judge_base_url", *PLACES)
_HARMLESS = {"python", "retrieval", "single"}  # words of --environment that are no code of somebody's


def record(folder: Path, flags: Mapping[str, str]) -> None:
    """Record what the flags of a run in this folder name. Without a record, a resume asks for it again."""
    with contextlib.suppress(OSError):  # a checkout that is only read
        for name in _NAMES:
            if name in flags:
                file = _find_record(folder, name, flags[name])
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()


def refuse_others(folder: Path, flags: Mapping[str, str]) -> None:
    """Refuse code, addresses and disks that only a run folder names.

    Args:
        flags: those that the run folder names, and the user has not given again.

    Raises:
        UserError: if the checkout has no record of one of them.
    """
    named = {name: flags[name] for name in _NAMES if name in flags}
    unknown = {name: value for name, value in named.items() if not _may_bring(folder, name, value)}
    if unknown:
        given = " ".join(f"--{name} {shlex.quote(value)}" for name, value in unknown.items())
        raise UserError(
            f"{folder} names {given}, and this checkout has not made a run with that there",
            f"if you trust it, give it again: ./train_grpo.sh --resume {shlex.quote(str(folder))} {given}",
        )


def find_places(folder: Path) -> dict[str, str]:
    """Return where a run writes outside of its folder."""
    files = RunFiles(folder)
    places = {name: os.path.realpath(files.find_folder(name, files.read_config())) for name in PLACES}
    return {name: place for name, place in places.items() if not Path(place).is_relative_to(folder.resolve())}


def _may_bring(folder: Path, name: str, value: str) -> bool:
    """Tell whether a run folder may bring a flag along: its value is harmless, or a recorded one.

    A record does not cover a file in the folder itself, over which another one may have been copied.
    """
    if set(value.split()) <= _HARMLESS:
        return True
    if not value.isprintable():  # perhaps no path, which a system call would not take
        return False
    paths = [Path(word) for word in (value, *value.split())]
    came_along = any(path.is_absolute() and path.resolve().is_relative_to(folder.resolve()) for path in paths)
    return not came_along and _find_record(folder, name, value).exists()


def _find_record(folder: Path, name: str, value: str) -> Path:
    value = os.path.realpath(value) if name in PLACES else value
    digest = hashlib.sha256("\0".join((str(folder.absolute()), name, value)).encode(errors="surrogatepass")).hexdigest()
    return CHECKOUT / ".cache" / "own-runs" / digest
