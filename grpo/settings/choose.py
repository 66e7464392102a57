"""Which value counts: that of the environment, --config, an edit of train_grpo.sh, a box or the tiny run, its shipped
line, or the table."""

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from grpo.settings.boxes import ENGINE_SHARE, list_box_values, list_tiny_values
from grpo.settings.options import Options
from grpo.settings.recipe import list_edits
from grpo.settings.table import SETTINGS
from grpo.stack import machine
from grpo.stack.checkout import CHECKOUT, is_cpu_stack

Changes = dict[str, list[str]]  # setting: its value, and what it would be without it
_PREPARED = CHECKOUT / "data" / "prepared"


def select_given(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the settings among variables. An empty one is as if it were not set, unless empty is a value."""
    return {
        name: variables[name]
        for name, setting in SETTINGS.items()
        if name in variables and (variables[name] or setting.may_be_empty)
    }


def choose(options: Options, given: Mapping[str, str], recipe: Mapping[str, str]) -> dict[str, str]:
    """Return the value of every setting as text.

    Args:
        given: what the user set, in the environment or by --config.
        recipe: the settings of train_grpo.sh.
    """
    layers = (recipe, _list_option_values(options, given, recipe), list_edits(recipe), given)
    values = {name: setting.default or "" for name, setting in SETTINGS.items()}
    for layer in layers:
        values |= layer
    for name, value in _derive_values(values).items():
        values[name] = values[name] or value
    return values


def _find_gpus(options: Options) -> int | None:
    return options.gpus or (_choose_tiny_gpus() if options.is_tiny else None)


def _list_option_values(options: Options, given: Mapping[str, str], recipe: Mapping[str, str]) -> dict[str, str]:
    """Return what --gpus and --tiny set in place of the shipped lines of train_grpo.sh."""
    is_shared = (given.get("COLOCATE") or recipe["COLOCATE"]) == "1"
    is_paired = (given.get("ACTOR_SHARD") or recipe.get("ACTOR_SHARD")) == "engine"
    can_pair = machine.find_gpu_that_cannot_share() is None
    box = list_box_values(_find_gpus(options), options.is_tiny, is_shared, is_paired, can_pair)
    gpu_bytes = min((gpu.memory for gpu in machine.known_gpus()), default=0)
    return (list_tiny_values(given, gpu_bytes) if options.is_tiny else {}) | box


def describe_script(options: Options, given: Mapping[str, str], recipe: Mapping[str, str]) -> list[str]:
    """Return in lines for people what was edited in train_grpo.sh, and what options set in place of its lines."""
    edits = {name: value for name, value in list_edits(recipe).items() if name not in given}
    lines = [f"{name}={value} (edited in train_grpo.sh)" for name, value in edits.items()]
    lines += [
        f"{name}={value or 'empty'} (by --tiny or --gpus; train_grpo.sh: {recipe[name] or 'empty'})"
        for name, value in _list_option_values(options, given, recipe).items()
        if name not in given and name not in edits and recipe.get(name, value) != value
    ]
    return _head("script", lines)


def changes(
    options: Options, given: Mapping[str, str], config: Mapping[str, str], recipe: Mapping[str, str]
) -> Changes:
    """Return what the user changed for this start: settings that would have another value, and flags after `--`.

    Args:
        config: the settings of --config, and those that a resumed run has kept.
    """
    changed: Changes = {}
    for name, value in given.items():
        others = {**config, **{other: text for other, text in given.items() if other != name}}
        if (default := choose(options, others, recipe)[name]) != value:
            changed[name] = [value, default]
    name = ""
    for word in options.flags:
        if word.startswith("--"):
            name, changed[word] = word, ["", ""]
        elif name:
            changed[name][0] = f"{changed[name][0]} {shlex.quote(word)}".strip()
    return changed


def describe(changed: Changes, config: Mapping[str, str]) -> list[str]:
    """Return the changed settings, and those of `config`, in lines for people."""
    lines = [f"{name}={value} (kept, or by --config)" for name, value in config.items() if name not in changed]
    lines += [
        f"{name} {value}" if name.startswith("--") else f"{name}={value} (default: {default or 'empty'})"
        for name, (value, default) in changed.items()
    ]
    return _head("set by you", lines)


def _head(head: str, lines: list[str]) -> list[str]:
    return [f"{head if number == 0 else '':<12}{line}" for number, line in enumerate(lines)]


def _choose_tiny_gpus() -> int | None:
    """Return the box of a tiny run that fits a machine with fewer than 3 GPUs."""
    if is_cpu_stack() or os.environ.get("RAY_ADDRESS"):
        return None
    return {1: 1, 2: 2}.get(len(machine.gpus()))


def _derive_values(values: Mapping[str, str]) -> dict[str, str]:
    """Return the values that follow from others where a setting is empty."""
    train = Path(values["TRAIN_DATA"] or _PREPARED / "train.jsonl")
    is_host = values["EXPERTS"] == "bf16" and values["ACTOR_SHARD"] == "zero3"
    is_greedy = re.fullmatch(r"0(\.0*)?", values["EVAL_TEMPERATURE"])
    return {
        "ENGINE_MODEL": values["MODEL"],
        "NAME": os.path.basename(values["MODEL"].rstrip("/")),
        "TRAIN_DATA": str(train),
        "EVAL_DATA": str(train.with_name("eval.jsonl")),
        "OLD_LOG_PROBS": "engine" if values["PIPELINE"] == "1" else "trainer",
        "GPU_MEMORY_UTILIZATION": "" if values["COLOCATE"] == "1" else f"{ENGINE_SHARE:.2f}",
        "OFFLOAD": "1" if is_host else "0",
        "EVAL_N_SAMPLES_PER_PROMPT": "1" if is_greedy else "8",
    }
