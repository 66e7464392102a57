"""The settings that a user gives: variables in the environment and flags after `--`.

`train_grpo.sh` does not export its settings, so those in the environment come from the user.
"""

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from grpo.stack.problem import Problem
from grpo.stack.variables import by_flag, defaults

Changes = dict[str, list[str]]  # setting: its value, and its default
_CLOSE = 0.86  # of difflib's ratio: one or two wrong letters in a name, not another word
# Names of other trainers, besides OpenRLHF's flags
_OTHERS = {
    "BETA": "KL_COEF",
    "MAX_COMPLETION_LENGTH": "GENERATE_MAX_LEN",
    "MAX_PROMPT_LENGTH": "PROMPT_MAX_LEN",
    "MAX_STEPS": "STEPS",
    "NUM_GENERATIONS": "N_SAMPLES_PER_PROMPT",
    "NUM_TRAIN_EPOCHS": "NUM_EPISODES",
    "PER_DEVICE_TRAIN_BATCH_SIZE": "MICRO_TRAIN_BATCH_SIZE",
    "REWARD_FUNC": "REWARD",
    "REWARD_FUNCS": "REWARD",
}


def warnings(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return a line for each variable that another trainer reads, perhaps for another program, and we do not."""
    ours = defaults(is_tiny=False)
    meant = {name: _OTHERS.get(name) or by_flag().get(name.lower()) for name in environ if name not in ours}
    return [
        f"WARNING: {name} has no effect: the setting of train_grpo.sh is {setting}"
        for name, setting in sorted(meant.items())
        if setting
    ]


def misspelt(environ: Mapping[str, str] = os.environ) -> Iterator[Problem]:
    """Yield a problem for each variable whose name is close to one of our settings."""
    ours = defaults(is_tiny=False)
    for name in sorted(environ):
        if name not in ours and (meant := _meant(name, ours)):
            yield Problem(
                f"{name} is not a setting of train_grpo.sh",
                f"did you mean {meant}? If another program needs {name}, run env -u {name} ./train_grpo.sh",
            )


def _meant(name: str, ours: Iterable[str]) -> str | None:
    """Return the setting in another case, or with more words, or with one or two other letters."""
    if name.startswith("GRPO_") or not re.fullmatch("[A-Za-z_]+", name):  # GRPO_*: set by train_grpo.sh
        return None
    if "_" in name:
        longer = [setting for setting in ours if f"{setting}_".startswith(f"{name.upper()}_")]
        if longer:
            return longer[0]
    close = difflib.get_close_matches(name, ours, n=1, cutoff=_CLOSE)
    return close[0] if close else None


def changed(is_tiny: bool, flags: Sequence[str], environ: Mapping[str, str] = os.environ) -> Changes:
    """Return the value and the default of each setting that the user gave another value.

    Args:
        is_tiny: whether the defaults of `--tiny` apply.
        flags: the words after `--`; their defaults are OpenRLHF's, "".
    """
    ours = defaults(is_tiny)
    values = {name: [environ[name], ours[name]] for name in ours if environ.get(name, ours[name]) != ours[name]}
    starts = [index for index, word in enumerate(flags) if word.startswith("--")]
    for start, end in pairwise([*starts, len(flags)]):
        values[flags[start]] = [" ".join(flags[start + 1 : end]), ""]
    return values


def describe(changes: Changes) -> list[str]:
    """Return the changed settings in lines for people."""
    lines = [
        f"{name} {value}" if name.startswith("--") else f"{name}={value} (default: {default or 'empty'})"
        for name, (value, default) in changes.items()
    ]
    heads = ["set by you", *[""] * len(lines)]
    return [f"{head:<12}{line}" for head, line in zip(heads, lines, strict=False)]
