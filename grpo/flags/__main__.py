"""python -P -m grpo.flags: prints docs/flags.md with --page; otherwise refuses wrong words of train_grpo.sh, or helps.

scripts/launch.sh calls it before setup, which can take minutes.
"""

import argparse
import importlib.util
import sys
from collections.abc import Sequence

from grpo.flags import ours, parser
from grpo.flags.upstream import make_strict, parse_given
from grpo.stack import command
from grpo.stack.problem import UserError

_HEAD = """# Flags

This page lists the flags that this project adds to OpenRLHF's. `./train_grpo.sh --help` prints all flags, and
[Coming from OpenRLHF](coming-from-openrlhf.md) says what became of OpenRLHF's. A flag can stand in `train_grpo.sh`, or
in a copy of it, and on the command line, which wins. `--no-NAME` turns a switch off. An empty value undoes a flag.

`python -P -m grpo.flags --page > docs/flags.md` generates this page.
"""


def make_page() -> str:
    """Return docs/flags.md."""
    parts = [_HEAD]
    for group in _make_own_parser()._action_groups:
        rows = [_make_row(action) for action in group._group_actions if action.help != argparse.SUPPRESS]
        if rows and group.title in _TITLES:
            parts += [f"## {group.title}\n", "| Flag | Default | |", "|---|---|---|", *rows, ""]
    return "\n".join(parts)


def _make_row(action: argparse.Action) -> str:
    default = parser.shipped_values().get(action.dest, action.default)
    text = " ".join(map(str, default)) if isinstance(default, list) else "" if default is None else str(default)
    if isinstance(default, bool):
        text = "on" if default else "off"
    about = (action.help or "").partition(" (default")[0].replace("%%", "%").replace("|", "\\|")
    choices = f" One of {', '.join(map(str, action.choices))}." if action.choices else ""
    return (
        f"| `{action.option_strings[0]}` | {f'`{text}`' if text else ''} | {about[:1].upper()}{about[1:]}.{choices} |"
    )


def _make_own_parser() -> argparse.ArgumentParser:
    """Return a parser of our flags alone, for a Python without OpenRLHF."""
    own = argparse.ArgumentParser(prog="./train_grpo.sh", usage="%(prog)s [FLAG ...]", allow_abbrev=False)
    ours.add_flags(own)
    parser.add_exported(own)
    parser.add_options(own)
    return make_strict(own)


def check(words: Sequence[str]) -> int:
    """Refuse wrong words, or print the help; return the exit code."""
    try:
        if importlib.util.find_spec("openrlhf"):
            own = parser.make_parser()
        elif {"-h", "--help"} & set(words):
            own = _make_own_parser()
        else:
            return 0  # setup comes first
        for part in parser.split(words):
            parse_given(own, part)
    except UserError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    return 0


def main() -> int:
    """Print the page, or check the words."""
    if sys.argv[1:] == ["--page"]:
        print(make_page(), end="")
        return 0
    return check(sys.argv[1:])


_TITLES = (
    *("Starting a run", "Model and adapter", "Rollouts and their length", "Environments", "Reward and judge"),
    *("Algorithm", "Evaluation, logs and faults"),
)
if __name__ == "__main__":
    command.run(main)
