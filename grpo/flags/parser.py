"""The launcher's parser, and what a command line asks for: each flag's value and the source that set it.

The words are `SCRIPT_FLAGS -- USER_WORDS`: train_grpo.sh's arrays, then the command line. From weak to strong: the
script's lines as shipped (or the flags that a resumed run has recorded), what --tiny and --gpus set, lines that were
edited in the script, the command line.
"""

import argparse
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from grpo.flags import boxes, other_names, ours
from grpo.flags.upstream import make_strict, parse_given, trainer_parser
from grpo.stack.problem import UserError
from grpo.stack.secrets import secrets

Values = dict[str, Any]
OPTIONS = ("mode", "tiny", "gpus", "run_dir", "resume", "held", "script_file")  # of this start, not of the run
SCRIPT, COMMAND_LINE, KEPT = "script", "command line", "kept: "
# These follow from --run-dir and --resume, or get a folder and a key from the launcher.
_REPLACED = ("run_dir", "resume_from", "save_path", "use_tensorboard", "use_wandb")
# Files and folders: absolute, since a run may be resumed from another folder
_PATHS = (
    *("pretrain", "engine_model", "adapter", "prompt_data", "eval_dataset", "remote_rm_url", "environment", "library"),
    *("agent_func_path", "ckpt_path", "metrics_dir", "script_file"),
)


@dataclass
class Asked:
    """What a command line asks for.

    Attributes:
        values: the flags that were given, without those of OPTIONS.
        sources: what set each of them.
        script: the script's words; a resumed run finds by them which lines have changed.
        mode: run, check, plan, or dry-run.
        held: the file descriptor of the run's lock, from the launcher before a restart.
        script_file: the script.
        is_other_script: whether another script started the run that is resumed, so that lines of this one do not count.
    """

    values: Values
    sources: dict[str, str] = field(default_factory=dict)
    script: list[str] = field(default_factory=list)
    mode: str = "run"
    tiny: bool = False
    gpus: int | None = None
    run_dir: str | None = None
    resume: str | None = None
    held: int | None = None
    script_file: str | None = None
    is_other_script: bool = False

    def list_differences(self) -> dict[str, tuple[str, str, str]]:
        """Return what differs from the shipped recipe: flag -> (value, shipped value or default, source)."""
        found = {}
        for action in make_parser()._actions:
            name = action.dest
            before, value = get_default(name), self.values.get(name, action.default)
            if name not in OPTIONS and value != before:
                source = self.sources.get(name, SCRIPT)  # from which the line was removed
                found[action.option_strings[0]] = (_show(value), _show(before), source)
        return found

    def describe(self) -> list[str]:
        """Return the differences in lines for people."""
        lines = [
            f"{flag} {value or '(unset)'} (shipped: {before or 'unset'}; {source})"
            for flag, (value, before, source) in self.list_differences().items()
        ]
        lines = [f"{'differs' if number == 0 else '':<12}{line}" for number, line in enumerate(lines)]
        kept = f"{'kept':<12}the run's own flags: another script started it, so {self.script_file} does not count"
        return [kept, *lines] if self.is_other_script else lines


def fill(asked: Asked, words: Sequence[str], read_recorded: Callable[[str], Asked]) -> None:
    """Fill in what a command line asks for, its options first, and the flags that a resumed run has recorded.

    Args:
        read_recorded: returns what the run of `--resume` was asked for so far.

    Raises:
        UserError: for wrong words, or more GPUs than the box has.
    """
    _refuse_secrets(words)
    other_names.refuse_variables(os.environ)
    script_words, user_words = split(words)
    script, user, shipped = _parse_given(script_words), _parse_given(user_words), shipped_values()
    vars(asked).update({name: value for name, value in (script | user).items() if name in OPTIONS}, script=script_words)
    base, base_sources, reference, is_other_box = script, dict.fromkeys(script, SCRIPT), shipped, True
    if asked.resume:
        if asked.run_dir:
            raise UserError("--resume continues in its own folder", "remove --run-dir")
        before = read_recorded(asked.resume)
        base, reference = before.values, _parse_given(before.script)
        if script and script.get("script_file") != reference.get("script_file"):
            asked.is_other_script, script_words, script = True, before.script, reference
        base_sources = {name: f"{KEPT}{source.removeprefix(KEPT)}" for name, source in before.sources.items()}
        asked.tiny, asked.gpus = asked.tiny or before.tiny, asked.gpus or before.gpus
        asked.resume, asked.script = before.resume, script_words or before.script
        is_other_box = (asked.tiny, asked.gpus) != (before.tiny, before.gpus)
    # A line that reads a variable is as shipped without it: a resume needs no variable again.
    unset = {name for name in other_names.VARIABLES.values() if script.get(name) == shipped.get(name)}
    edits = {name: value for name, value in script.items() if name not in unset and reference.get(name) != value}
    mine = (base if asked.resume else {}) | edits | user
    box = boxes.list_values(asked.gpus, asked.tiny, mine) if is_other_box else {}
    by = " ".join(["--tiny"] * asked.tiny + [f"--gpus {asked.gpus}"] * bool(asked.gpus)) or "shared GPUs"
    sources = base_sources | dict.fromkeys(box, by) | {name: _find_source(name) for name in edits}
    sources |= dict.fromkeys(user, COMMAND_LINE)
    values = {name: value for name, value in (base | box | edits | user).items() if name not in OPTIONS}
    asked.values = {name: value for name, value in values.items() if value is not None}
    asked.sources = {name: sources[name] for name in values}
    defaults = {action.dest: action.default for action in make_parser()._actions}
    if asked.gpus and (lack := boxes.find_lack(asked.gpus, "--gpus", defaults | asked.values)):
        raise UserError(lack.what, lack.remedy)


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the script's words and the user's, who may separate some by another `--`."""
    if "--" not in words:
        return [], list(words)
    at = list(words).index("--")
    return list(words[:at]), [word for word in words[at:] if word != "--"]


@cache
def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags of a run: OpenRLHF's and ours, and the launcher's options.

    Raises:
        UserError: if OpenRLHF is missing or not patched.
    """
    parser = trainer_parser()
    parser.prog, parser.usage = "./train_grpo.sh", "%(prog)s [FLAG ...]"
    parser._optionals.title = "OpenRLHF's flags"
    for name in _REPLACED:
        ours.remove(parser, name)
    _make_switches_undoable(parser)
    add = parser.add_argument_group("Trackers").add_argument
    add("--use_tensorboard", action=ours.SWITCH, help="write TensorBoard files into the run directory")
    add("--use_wandb", action=ours.SWITCH, help="log to W&B; the key is in WANDB_API_KEY, not on the command line")
    # These reach every worker as variables, and not the trainer's command line.
    ours.add_reward(parser.add_argument_group("Reward and judge"))
    ours.add_environment(parser.add_argument_group("Environments"))
    _add_options(parser.add_argument_group("Starting a run"))
    groups = parser._action_groups
    parser._action_groups = [groups[-1], *groups[2:-1], *groups[:2]]  # help shows OpenRLHF's last
    for action in parser._actions:
        action.required = False
        action.default = ours.DEFAULTS.get(action.dest, action.default)
    return make_strict(parser)


# fmt: off
def _add_options(group: argparse._ArgumentGroup) -> None:
    """Add the launcher's options."""
    add = group.add_argument
    add("--tiny", action="store_true", help="a tiny gpt-oss and synthetic problems: 2 minutes on 2 cores. On GPUs if "
        ".venv has the GPU stack: on 3, or on 2 or 1 if this machine has fewer. Without a key for the judge, a local "
        "server answers")
    add("--gpus", type=int, choices=sorted(boxes.BOXES, reverse=True), help="the GPUs of this box (default: 8)")
    for mode, about in {
        "check": "check machine, patches, model, data, and flags, then exit; makes .venv and the tiny model first if "
            "they are missing",
        "plan": "print what the flags mean (batches, lengths, steps, memory, disk, hours), then exit; needs neither "
            "GPUs nor data; the exit code is 2 if a GPU cannot hold the run, or if flags, data, reward, or environment "
            "are wrong",
        "dry-run": "print the trainer's command, then exit",
    }.items():
        add(f"--{mode}", dest="mode", action="store_const", const=mode, help=about)
    add("--run-dir", default=None, metavar="DIR", help="folder of this run (default: runs/NAME-TIME in the checkout)")
    add("--resume", metavar="DIR", help="continue the run in DIR from its newest whole checkpoint, with its flags and "
        "those given now; latest is the newest run in runs/ that has not finished")
    add("--held", type=int, help=argparse.SUPPRESS)
    add("--script", dest="script_file", help=argparse.SUPPRESS)
# fmt: on


@cache
def shipped_values() -> Values:
    """Return the flags of train_grpo.sh as shipped, by which edits of it are found."""
    words = shlex.split(Path(__file__).with_name("shipped.args").read_text(encoding="utf-8"), comments=True)
    return parse_given(make_parser(), words)


def get_default(name: str) -> Any:
    """Return what a flag has in a run of train_grpo.sh without options."""
    return shipped_values().get(name, make_parser().get_default(name))


def _refuse_secrets(words: Sequence[str]) -> None:
    for word, after in pairwise([*words, "--"]):
        if word.startswith("--use_wandb=") or (word == "--use_wandb" and not after.startswith("--")):
            what = "every user of this machine can read a key on a command line"
            raise UserError(what, "export WANDB_API_KEY, and give --use_wandb without a value")
        for name, value in secrets().items():
            if value in word:
                raise UserError(f"a flag contains the value of {name}", "remove it; it is read from the environment")


def _make_switches_undoable(parser: argparse.ArgumentParser) -> None:
    """Let `--no-NAME` undo each switch, so that the command line can undo what the script sets."""
    for group in parser._action_groups:
        for place, action in enumerate(group._group_actions):
            if isinstance(action, argparse._StoreTrueAction):
                about = {"dest": action.dest, "default": action.default}
                switch = ours.SWITCH(action.option_strings, **about)
                switch.help, switch.container = action.help, group  # type: ignore[attr-defined]
                group._group_actions[place] = parser._actions[parser._actions.index(action)] = switch
                parser._option_string_actions.update(dict.fromkeys(switch.option_strings, switch))


def _parse_given(words: Sequence[str]) -> Values:
    values = parse_given(make_parser(), words)
    return values | {name: _make_absolute(name, values[name]) for name in _PATHS if values.get(name)}


def _make_absolute(name: str, value: str) -> str:
    """Return a path, or several files between blanks, absolute where they exist."""
    if os.path.isfile(value) or (name != "environment" and os.path.isdir(value)):  # "python" is no folder
        return os.path.abspath(value)
    return " ".join(os.path.abspath(file) if os.path.isfile(file) else file for file in value.split())


def _find_source(name: str) -> str:
    """Return what set an edited line: one of the variables that it reads, or the edit."""
    variables = [one for one, flag in other_names.VARIABLES.items() if flag == name and os.environ.get(one)]
    return variables[0] if variables else "edited script"


def _show(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "" if value is None else str(value)
