"""Files of settings, and the recipe in train_grpo.sh, which is one: lines of NAME=VALUE with comments."""

import os
import shlex
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from grpo.settings.misspelt import close_to
from grpo.settings.table import SETTINGS
from grpo.stack.checkout import CHECKOUT
from grpo.stack.problem import UserError

SOURCE = "the recipe in train_grpo.sh"
_ALL = "docs/settings.md lists all"


def read(lines: Iterable[str], source: str) -> dict[str, str]:
    """Return the settings of some lines. Quotes and comments are as in a shell, and so are $NAME and ~ in a value.

    Args:
        source: of the lines, for messages.

    Raises:
        UserError: if a line is not a setting, or if two lines set the same name.
    """
    values: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        where = f"{source}, line {number}"
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise UserError(f"{where}: {error}", "write NAME=VALUE, and quote a value with blanks") from None
        if not words:
            continue
        name, sign, value = words[0].partition("=")
        if not sign or len(words) > 1:
            raise UserError(f"{where} is {line.strip()!r}", "write NAME=VALUE, and quote a value with blanks")
        if name not in SETTINGS:
            meant = close_to(name)
            raise UserError(f"{where}: {name} is not a setting", f"did you mean {meant}?" if meant else _ALL)
        if name in values:
            raise UserError(f"{where}: {name} is set a second time", "remove one of the two lines")
        values[name] = os.path.expanduser(os.path.expandvars(value))
    return values


def read_file(path: Path) -> dict[str, str]:
    """Return the settings of a file.

    Raises:
        UserError: if the file cannot be read, or if a line is not a setting.
    """
    try:
        return read(path.read_text(encoding="utf-8").splitlines(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error})", "name a file with lines of NAME=VALUE") from None


def lines() -> list[str]:
    """Return the lines of the recipe in train_grpo.sh."""
    script = (CHECKOUT / "train_grpo.sh").read_text(encoding="utf-8")
    return script.partition("<<'RECIPE'\n")[2].partition("\nRECIPE\n")[0].splitlines()


@cache
def recipe() -> dict[str, str]:
    """Return the settings in train_grpo.sh."""
    return read(lines(), SOURCE)


@cache
def shipped() -> dict[str, str]:
    """Return the settings that train_grpo.sh has before a user edits it."""
    return read_file(Path(__file__).with_name("shipped.env"))


def list_edits(settings: Mapping[str, str]) -> dict[str, str]:
    """Return those settings of a recipe that differ from the shipped one."""
    return {
        name: value for name, value in settings.items() if value != shipped().get(name, SETTINGS[name].default or "")
    }


def default(name: str) -> str:
    """Return the default of a setting for a run of train_grpo.sh without options."""
    value = SETTINGS[name].default
    return recipe()[name] if value is None else value
