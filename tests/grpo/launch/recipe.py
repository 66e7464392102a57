"""Calls of `train_grpo.sh` in a checkout of links."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def variables_of_script() -> set[str]:
    """The names of its variables, which are removed from the tests' own environment."""
    return set(re.findall(r'"\$\{(\w+):?=', (ROOT / "train_grpo.sh").read_text()))


def call(checkout: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in variables_of_script()}
    return subprocess.run(
        [str(checkout / "train_grpo.sh"), *options], env=kept | variables, capture_output=True, text=True, timeout=100
    )
