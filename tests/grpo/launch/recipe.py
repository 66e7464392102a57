"""What `train_grpo.sh` launches, in this process; and calls of the script itself, in a checkout of links."""

import contextlib
import functools
import io
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from grpo.flags import other_names
from grpo.launch import __main__ as launcher
from grpo.launch import signals

ROOT = Path(__file__).parents[3]


@functools.cache
def read_script(file: Path = ROOT / "train_grpo.sh", variables: tuple[tuple[str, str], ...] = ()) -> list[str]:
    """Return the words with which a copy of train_grpo.sh calls the launcher, without those of the command line."""
    program = f'exec() {{ shift; printf "%s\\0" "$@"; }}; source {file}'
    environ = keep_others() | dict(variables)
    done = subprocess.run(["bash", "-c", program], env=environ, capture_output=True, text=True, check=True)
    words = done.stdout.split("\0")[:-1]
    assert words.pop() == "--"
    return words


def keep_others() -> dict[str, str]:
    """Return the environment without variables of train_grpo.sh."""
    gone = other_names.VARIABLES
    return {name: value for name, value in os.environ.items() if name not in gone and not name.startswith("GRPO_")}


def launch(
    *options: str, script: list[str] | None = None, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Do what the script does once the checkout is set up."""
    out, err = io.StringIO(), io.StringIO()
    given = dict(environ or {})
    variables = {name: value for name, value in given.items() if name in other_names.VARIABLES}
    words = read_script(variables=tuple(variables.items())) if script is None else script
    with (
        mock.patch.dict(os.environ, keep_others() | given, clear=True),
        mock.patch.object(signals, "raise_them"),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = launcher.main([*words, "--", *options])
    return subprocess.CompletedProcess(options, code, out.getvalue(), err.getvalue())


def call(checkout: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script."""
    return subprocess.run(
        [str(checkout / "train_grpo.sh"), *options],
        env=keep_others() | variables,
        capture_output=True,
        text=True,
        timeout=800,
    )
