"""Calls of `train_grpo.sh` in a checkout of links."""

import os
import subprocess
from pathlib import Path

from grpo.settings.table import SETTINGS

ROOT = Path(__file__).parents[3]


def call(checkout: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    return subprocess.run(
        [str(checkout / "train_grpo.sh"), *options], env=kept | variables, capture_output=True, text=True, timeout=100
    )
