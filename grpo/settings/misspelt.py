"""Variables of the environment whose names are close to those of settings."""

import difflib
import re
from collections.abc import Iterator, Mapping

from grpo.settings.table import BY_FLAG, SETTINGS
from grpo.stack.problem import Problem

_CLOSE = 0.86  # of difflib's ratio: one or two wrong letters in a name, not another word
# Names of other trainers, besides OpenRLHF's flags
_OTHERS = {
    "BATCH_SIZE": "ROLLOUT_BATCH_SIZE",
    "BETA": "KL_COEF",
    "LOSS_TYPE": "POLICY_LOSS",
    "LR": "LEARNING_RATE",
    "MASK_TRUNCATED_COMPLETIONS": "MASK_TRUNCATED",
    "MAX_COMPLETION_LENGTH": "GENERATE_MAX_LEN",
    "MAX_PROMPT_LENGTH": "PROMPT_MAX_LEN",
    "MAX_STEPS": "STEPS",
    "NUM_GENERATIONS": "N_SAMPLES_PER_PROMPT",
    "NUM_TRAIN_EPOCHS": "NUM_EPISODES",
    "PER_DEVICE_TRAIN_BATCH_SIZE": "MICRO_TRAIN_BATCH_SIZE",
    "REWARD_FUNC": "REWARD",
    "REWARD_FUNCS": "REWARD",
}


def warnings(environ: Mapping[str, str]) -> list[str]:
    """Return a line for each variable that another trainer reads, perhaps for another program, and we do not."""
    by_flag = {flag.upper(): setting.name for flag, setting in BY_FLAG.items()}
    meant = {name: (_OTHERS | by_flag).get(name) for name in environ if name not in SETTINGS}
    return [
        f"WARNING: {name} has no effect: the setting of train_grpo.sh is {setting}"
        for name, setting in sorted(meant.items())
        if setting
    ]


def find(environ: Mapping[str, str]) -> Iterator[Problem]:
    """Yield a problem for each variable whose name is close to one of our settings."""
    for name in sorted(environ):
        if name not in SETTINGS and (meant := close_to(name)):
            yield Problem(
                f"{name} is not a setting of train_grpo.sh",
                f"did you mean {meant}? If another program needs {name}, run env -u {name} ./train_grpo.sh",
            )


def close_to(name: str) -> str | None:
    """Return the setting in another case, with more words, with its letters in another order, or one or two others."""
    if name.startswith("GRPO_") or not re.fullmatch("[A-Za-z_]+", name):  # GRPO_*: what a run sets for its workers
        return None
    if "_" in name:
        longer = [setting for setting in SETTINGS if f"{setting}_".startswith(f"{name.upper()}_")]
        if longer:
            return longer[0]
    if exchanged := [setting for setting in SETTINGS if sorted(setting) == sorted(name.upper())]:
        return exchanged[0]
    close = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=_CLOSE)
    return close[0] if close else None
