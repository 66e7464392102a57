"""python -P -m grpo.flags: prints docs/flags.md with --page; otherwise refuses wrong words of train_grpo.sh, or helps.

scripts/launch.sh calls it before setup, which can take minutes.
"""

import argparse
import importlib.util
import sys
from collections.abc import Iterable, Sequence

from grpo.flags import other_names, ours, parser
from grpo.flags.upstream import parse_given
from grpo.stack import command
from grpo.stack.problem import UserError

_HEAD = """# Flags

This page lists this project's flags, then what differs from OpenRLHF's, then the names of other trainers.
`./train_grpo.sh --help` lists all flags of OpenRLHF, too. A flag stands in `train_grpo.sh`, in a copy of it, or on the
command line, which wins. `--no-NAME` turns a switch off. An empty value undoes a flag.

`python -P -m grpo.flags --page > docs/flags.md` generates this page.
"""
_FROM_OPENRLHF = """## Coming from OpenRLHF

A script of OpenRLHF becomes a copy of `train_grpo.sh`: its arrays take your flags, and its last command takes the place
of `ray job submit`. The names are those of 0.9.3; dotted names of 0.11.2 that have no such name are refused. A flag
without a line in the copy has OpenRLHF's default, except:

| Flag | Here |
|---|---|"""
_FROM_OTHERS = """## Coming from TRL, Unsloth, or verl

A name of another trainer on the command line, or of TRL in the environment (`BETA=0.1`), is refused, and the refusal
names the flag. Three things differ: --train_batch_size counts rollouts and --rollout_batch_size prompts; --init_kl_coef
subtracts the KL from the reward, unless --use_kl_loss moves it into the loss; a reward is a function in a file.

| Here | TRL, Unsloth | verl, by the end of its name |
|---|---|---|"""
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
    parts += [_FROM_OPENRLHF, *_list_openrlhf(), "", _FROM_OTHERS, *_list_other_names(), ""]
    return "\n".join(parts)


def _list_openrlhf() -> list[str]:
    """Return rows: other defaults and meanings, and what is refused."""
    shipped, actions = parser.shipped_values(), {action.dest: action for action in parser.make_parser()._actions}
    defaults = {name: value for name, value in ours.DEFAULTS.items() if name not in shipped and value is not None}
    words = {name: "" if value is True else f" {value}" for name, value in defaults.items()}
    meanings = {name: actions[name].help or "" for name in (*ours.HELP, "use_wandb", "use_tensorboard")}
    return [
        f"| {_join(f'{name}{word}' for name, word in words.items())} | The defaults here. |",
        f"| {_join(name for name, value in ours.DEFAULTS.items() if value is None)} | Follow from other flags. |",
        *(f"| `--{name}` | {text[:1].upper()}{text[1:]}. |" for name, text in meanings.items()),
        "| `--save_path` | Follows from --run-dir. |",
        f"| {_join(sorted(other_names.GONE))} | Refused; the message says why. |",
    ]


def _list_other_names() -> list[str]:
    """Return rows: a flag of ours, and the names that other trainers have for it."""
    trainers = (other_names.TRL, other_names.VERL)
    rows = []
    for flag in sorted({flag for names in trainers for flag in names.values()}):
        cells = [", ".join(f"`{name}`" for name, answer in names.items() if answer == flag) for names in trainers]
        rows.append(f"| {flag} | {cells[0]} | {cells[1]} |")
    return rows


def _join(names: Iterable[str]) -> str:
    return ", ".join(f"`--{name}`" for name in names)


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
