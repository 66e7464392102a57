"""python -P -m grpo.flags: prints docs/flags.md with --page; otherwise refuses wrong words of train_grpo.sh, or helps.

scripts/launch.sh calls it before setup, which can take minutes.
"""

import argparse
import importlib.util
import sys
from collections.abc import Sequence

from grpo.flags import parser
from grpo.flags.upstream import parse_given
from grpo.stack import command
from grpo.stack.problem import UserError

_HEAD = """# Flags

This page lists this project's flags. `./train_grpo.sh --help` lists OpenRLHF's, too, and
[coming from](coming-from.md) what differs from OpenRLHF. A flag stands in `train_grpo.sh`, in a copy of it, or on the
command line, which wins. `--no-NAME` turns a switch off. An empty value undoes a flag:
OpenRLHF's default holds then, not the recipe's value.

`python -P -m grpo.flags --page > docs/flags.md` generates this page.
"""
_TITLES = (
    *("Starting a run", "Model and adapter", "Rollouts and their length", "Environments", "Reward and judge"),
    *("Algorithm", "Evaluation, logs and faults"),
)


def make_page() -> str:
    """Return docs/flags.md."""
    parts = [_HEAD]
    for group in parser.make_parser()._action_groups:
        if group.title in _TITLES:
            rows = [_make_row(action) for action in group._group_actions if action.help != argparse.SUPPRESS]
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


def check(words: Sequence[str]) -> int:
    """Refuse wrong words, or print the help; return the exit code. Before setup, OpenRLHF's flags are unknown."""
    if not importlib.util.find_spec("openrlhf"):
        if {"-h", "--help"} & set(words):
            print("--help lists the flags after ./scripts/setup.sh; docs/flags.md has this project's")
        return 0
    try:
        for part in parser.split(words):
            parse_given(parser.make_parser(), part)
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


if __name__ == "__main__":
    command.run(main)
