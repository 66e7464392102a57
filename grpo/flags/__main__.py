"""python -P -m grpo.flags: prints docs/flags.md with --page; otherwise refuses wrong words of train_grpo.sh, or helps.

scripts/launch.sh calls it before setup, which can take minutes.
"""

import argparse
import importlib.util
import sys
from collections.abc import Iterable, Sequence

from grpo.flags import other_names, ours, parser
from grpo.flags.upstream import make_strict, parse_given
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
_OTHER_MEANING = {
    "--remote_rm_url": "Your .py files, or the URL of a server. Without it, this project's reward.",
    "--use_wandb": "A switch; the key is in WANDB_API_KEY, because every user of a machine can read a command line.",
    "--use_tensorboard": "A switch; the files are in the run directory.",
    "--save_path": "Follows from --run-dir.",
    "--load_checkpoint": "Refused; --resume RUN_DIR continues a run.",
    "--agent_func_path": "An agent of OpenRLHF's; --environment names an environment.",
    "--async_train": "Refused; --pipeline samples while the actor trains.",
    "--target_modules": "Projections of the attention, and experts.",
}
_FROM_OTHERS = """## Coming from TRL, Unsloth, or verl

A name of another trainer on the command line is refused, and the refusal names the flag. Three things differ:
--train_batch_size counts rollouts and --rollout_batch_size prompts; --init_kl_coef subtracts the KL from the reward,
unless --use_kl_loss moves it into the loss; a reward is a function in a file.

| Here | TRL, Unsloth | verl, by the end of its name |
|---|---|---|"""


def make_page() -> str:
    """Return docs/flags.md."""
    parts = [_HEAD]
    for group in _make_own_parser()._action_groups:
        rows = [_make_row(action) for action in group._group_actions if action.help != argparse.SUPPRESS]
        if rows and group.title in _TITLES:
            parts += [f"## {group.title}\n", "| Flag | Default | |", "|---|---|---|", *rows, ""]
    parts += [_FROM_OPENRLHF, *_list_openrlhf(), "", _FROM_OTHERS, *_list_other_names(), ""]
    return "\n".join(parts)


def _list_openrlhf() -> list[str]:
    """Return rows: other defaults and meanings, and what is refused."""
    shipped = parser.shipped_values()
    defaults = {name: value for name, value in ours.DEFAULTS.items() if name not in shipped and value is not None}
    words = {name: "" if value is True else f" {value}" for name, value in defaults.items()}
    rows = [f"| {_join(f'{name}{word}' for name, word in words.items())} | The defaults here. |"]
    rows += [f"| {_join(name for name, value in ours.DEFAULTS.items() if value is None)} | Follow from other flags. |"]
    rows += [f"| `{flag}` | {text} |" for flag, text in _OTHER_MEANING.items()]
    refused = sorted(name for name in ours.GONE if f"--{name}" not in _OTHER_MEANING)
    return [*rows, f"| {_join(refused)} | Refused; the message says why. |"]


def _list_other_names() -> list[str]:
    """Return rows: a flag of ours, and the names that other trainers have for it."""
    names = {"TRL": other_names.TRL, "verl": other_names.VERL}
    rows = []
    for flag in sorted({*names["TRL"].values(), *names["verl"].values()}):
        cells = [", ".join(f"`{name}`" for name, ours_ in of.items() if ours_ == flag) for of in names.values()]
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


def _make_own_parser() -> argparse.ArgumentParser:
    """Return a parser of our flags alone, for a Python without OpenRLHF."""
    own = argparse.ArgumentParser(prog="./train_grpo.sh", usage="%(prog)s [FLAG ...]", allow_abbrev=False)
    ours.add_flags(own)
    parser.add_exported(own)
    parser.add_options(own)
    return make_strict(own)


_ABOUT = {
    "pretrain": "the model: a folder, or a hub id that is already in the hub's cache",
    "prompt_data": "the training problems, a .jsonl file",
    "eval_dataset": "the held-out problems; without it, eval.jsonl beside the training problems",
    "remote_rm_url": "your reward: .py files, or the URL of a server; without it, this project's",
    "rollout_batch_size": "prompts of a global step",
    "n_samples_per_prompt": "rollouts of a prompt: its group",
    "train_batch_size": "rollouts, not prompts, of an optimizer step",
    "generate_max_len": "the most tokens of a response",
    "actor_learning_rate": "the peak of the learning rate",
    "init_kl_coef": "weight of the KL to the starting policy, in the reward or, with --use_kl_loss, in the loss",
    "kl_estimator": "what the metric kl reports; with --use_kl_loss, the gradient is that of the KL itself",
    "eps_clip": "the ratio of a token is clipped this far from 1",
}


def _explain(own: argparse.ArgumentParser) -> None:
    """Let the help say what OpenRLHF's main flags mean here, and what the recipe gives them."""
    shipped = parser.shipped_values()
    for action in own._actions:
        value = shipped.get(action.dest)
        text = " ".join(map(str, value)) if isinstance(value, list) else str(value or "")
        about = _ABOUT.get(action.dest, action.help or "")
        if action.dest in shipped and text and not isinstance(value, bool):
            about = f"{about} (recipe: {text})".strip()
        action.help = about if action.help != argparse.SUPPRESS else action.help


def check(words: Sequence[str]) -> int:
    """Refuse wrong words, or print the help; return the exit code."""
    try:
        if importlib.util.find_spec("openrlhf"):
            own = parser.make_parser()
            if {"-h", "--help"} & set(words):
                _explain(own)
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
