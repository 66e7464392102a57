"""Variables of the environment whose names are close to those of settings."""

import difflib
import re
from collections.abc import Iterator, Mapping

from grpo.settings.table import SETTINGS
from grpo.stack.problem import Problem

_CLOSE = 0.86  # of difflib's ratio: one or two wrong letters in a name, not another word


def find(environ: Mapping[str, str]) -> Iterator[Problem]:
    """Yield a problem for each variable whose name is close to one of our settings."""
    for name in sorted(environ):
        if name not in SETTINGS and (meant := close_to(name)):
            yield Problem(
                f"{name} is not a setting of train_grpo.sh",
                f"did you mean {meant}? If another program needs {name}, run env -u {name} ./train_grpo.sh",
            )


def close_to(name: str) -> str | None:
    """Return the setting in another case, or with more words, or with one or two other letters."""
    if name.startswith("GRPO_") or not re.fullmatch("[A-Za-z_]+", name):  # GRPO_*: what a run sets for its workers
        return None
    if "_" in name:
        longer = [setting for setting in SETTINGS if f"{setting}_".startswith(f"{name.upper()}_")]
        if longer:
            return longer[0]
    close = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=_CLOSE)
    return close[0] if close else None
