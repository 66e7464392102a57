"""command.sh of a run folder: all flags that were given. It starts them again, and `--resume` reads them."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo.flags.parser import KEPT, Asked, make_parser, split
from grpo.flags.upstream import make_words, parse_given
from grpo.run import own_runs
from grpo.run.run_files import RunFiles
from grpo.stack.checkout import CHECKOUT
from grpo.stack.json_files import read_bytes
from grpo.stack.problem import UserError

_LAST_WITH_SETTINGS = "e6f83218"  # the last commit whose train_grpo.sh had settings
_HEAD = """#!/usr/bin/env bash
# The flags of this run. This starts another run with them; more flags win: ./command.sh --steps 5
exec {launcher} -- \\
"""


def make_script(asked: Asked, run_dir: Path, date: str | None = None) -> str:
    """Return command.sh. Flags that point into the run folder are left out: another run has its own.

    Args:
        date: of the prompts, if they have one.
    """
    values: dict[str, Any] = {name: value for name, value in asked.values.items() if not _is_within(value, run_dir)}
    values |= {"tiny": asked.tiny or None, "gpus": asked.gpus, "template_date": date}
    words = make_words(make_parser(), values)
    head = _HEAD.format(launcher=shlex.quote(str(CHECKOUT / "scripts" / "launch.sh")))
    return head + "".join(f"    {line} \\\n" for line in group_flags(words)) + '    "$@"\n'


def group_flags(words: Sequence[str]) -> list[str]:
    """Return a command line in lines, each a flag with its values."""
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word)
    return [shlex.join(line) for line in lines]


def read(folder: Path) -> Asked:
    """Return what a run was asked for so far, except its own folders, which follow from where it lies.

    Raises:
        UserError: if the run was made before train_grpo.sh had flags, or command.sh cannot be read.
    """
    files = RunFiles(folder)
    config = files.read_config()
    script, sources = config.get("script"), config.get("sources")
    if not isinstance(script, list) or not isinstance(sources, dict):
        raise UserError(
            f"{folder} was made when train_grpo.sh had settings in place of flags",
            f"resume it with that version (git checkout {_LAST_WITH_SETTINGS}), or start a new run from its adapter: "
            "--adapter CHECKPOINT/adapter",
        )
    try:
        text = read_bytes(files.command).decode().replace("\\\n", " ")
        words = shlex.split(text, comments=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{files.command} cannot be read ({error})", "restore the file from a copy") from None
    values = parse_given(make_parser(), [word for word in split(words)[1] if word != "$@"])
    is_tiny, gpus = values.pop("tiny", False), values.pop("gpus", None)
    for name in own_runs.PLACES:
        values.pop(name, None)
    named = {name: str(sources.get(name, "command.sh")) for name in values}
    return Asked(values, named, [str(word) for word in script], tiny=is_tiny, gpus=gpus, resume=str(folder))


def refuse_others(asked: Asked, folder: Path) -> None:
    """Refuse code, addresses and disks that only the run folder names."""
    kept = {name: value for name, value in asked.values.items() if asked.sources[name].startswith(KEPT)}
    places = {name: place for name, place in own_runs.find_places(folder).items() if name not in asked.values}
    own_runs.refuse_others(folder, kept | places)


def _is_within(value: object, folder: Path) -> bool:
    return isinstance(value, str) and Path(value).is_absolute() and Path(value).is_relative_to(folder)
