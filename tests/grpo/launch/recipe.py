"""What `train_grpo.sh` launches, in this process; and calls of the script itself, in a checkout of links."""

import contextlib
import io
import os
import subprocess
from pathlib import Path
from unittest import mock

from grpo.launch import recipe, signals
from grpo.settings.recipe import lines
from grpo.settings.table import SETTINGS

ROOT = Path(__file__).parents[3]
LINKED = ("train_grpo.sh", "scripts", "grpo", "data", "reward", "patches", "pyproject.toml")


def launch(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Do what the script does once the checkout is set up."""
    kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, kept | variables, clear=True),
        mock.patch.object(signals, "raise_them"),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = recipe.main(lines(), options)
    return subprocess.CompletedProcess(options, code, out.getvalue(), err.getvalue())


def call(checkout: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script."""
    kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    return subprocess.run(
        [str(checkout / "train_grpo.sh"), *options], env=kept | variables, capture_output=True, text=True, timeout=800
    )
