"""The options of train_grpo.sh, whose head comment documents them. scripts/launch.sh answers --help.

python -P -m grpo.settings.options WORD...: refuses wrong options before anything is installed
"""

import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from grpo.settings.boxes import BOXES
from grpo.settings.misspelt import close_to
from grpo.settings.table import SETTINGS
from grpo.stack import command
from grpo.stack.problem import UserError

MODES = ("check", "plan", "dry-run")
_VALUED = ("config", "gpus", "run-dir", "resume", "steps")
_HELP = "./train_grpo.sh --help lists the options; OpenRLHF flags go after --"


@dataclass
class Options:
    """What the user asks for.

    Attributes:
        mode: run, or one of MODES.
        values: those of the options with a value, without dashes.
        settings: those that --steps and --no-graphs stand for.
        flags: the words after `--`.
        again: the options that a resumed run needs again.
    """

    mode: str = "run"
    is_tiny: bool = False
    values: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)

    @property
    def gpus(self) -> int | None:
        return int(self.values["gpus"]) if self.values.get("gpus") else None


def parse(words: Sequence[str]) -> Options:
    """Return the options of a command line.

    Raises:
        UserError: for an unknown option, or options that contradict each other.
    """
    options, rest = Options(), list(words)
    while rest:
        word = rest.pop(0)
        name, sign, value = word.removeprefix("--").partition("=")
        if word == "--":
            options.flags, rest = rest, []
        elif word in ("-h", "--help"):
            continue
        elif word == "--tiny":
            options.is_tiny = True
            options.again.append(word)
        elif word == "--no-graphs":
            options.settings["ENFORCE_EAGER"] = "1"
        elif word.startswith("--") and name in MODES and not sign:
            if options.mode != "run":
                raise UserError(f"--{options.mode} and {word} cannot be combined", "give one of them")
            options.mode = name
        elif word.startswith("--") and name in _VALUED:
            if not sign and not rest:
                raise UserError(f"--{name} needs a value", "see ./train_grpo.sh --help")
            options.values[name] = value if sign else rest.pop(0)
            if name == "gpus":
                options.again += [f"--{name}", options.values[name]]
            if name == "steps":
                options.settings["STEPS"] = options.values[name]
        else:
            raise _unknown(word)
    _check(options.values)
    return options


def _check(values: dict[str, str]) -> None:
    if values.get("resume") and values.get("run-dir"):
        raise UserError("--resume continues in its own folder", "remove --run-dir")
    if (values.get("gpus") or "8") not in map(str, BOXES):
        remedy = "give 8, 4, 2 or 1, or set NUM_ENGINES, ENGINE_TP, ACTOR_GPUS and COLOCATE"
        raise UserError(f"--gpus is {values['gpus']!r}", remedy)


def _unknown(word: str) -> UserError:
    name, sign, _ = word.partition("=")
    if sign and name in SETTINGS:
        return UserError(f"{word} is a setting", f"write it before the command: {word} ./train_grpo.sh")
    if sign and name.isupper():
        meant = close_to(name)
        return UserError(
            f"{name} is not a setting", f"did you mean {meant}?" if meant else "docs/settings.md lists all"
        )
    setting = name.removeprefix("--").replace("-", "_").upper()
    if setting in SETTINGS:
        return UserError(f"{word} is a setting, not an option", f"{setting}=VALUE ./train_grpo.sh")
    known = [f"--{option}" for option in ("tiny", "no-graphs", "help", *MODES, *_VALUED)]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return UserError(f"unknown option {word}", f"did you mean {close[0]}?" if close else _HELP)


if __name__ == "__main__":
    command.print_plainly()
    try:
        parse(sys.argv[1:])
    except UserError as error:
        print(f"train_grpo.sh: {error}", file=sys.stderr)
        sys.exit(2)
