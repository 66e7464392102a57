"""What scripts/env.sh sets in a shell."""

import os
import subprocess
from pathlib import Path

from grpo.stack.checkout import CHECKOUT

ASK = 'source "$0/scripts/env.sh" && echo "${USER-}" && python -P -c "import getpass; print(getpass.getuser())"'
NAMES = ("USER", "LOGNAME", "LNAME", "USERNAME")


def ask(**variables: str) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if name not in NAMES}
    command = ["bash", "-c", ASK, CHECKOUT]
    done = subprocess.run(command, env=kept | variables, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_user_without_a_name_gets_one_and_others_keep_theirs(tmp_path: Path) -> None:
    (tmp_path / "id").write_text('#!/bin/sh\n[ "$1" = -u ] && echo 54321 || exit 1\n')
    (tmp_path / "id").chmod(0o755)
    assert ask(PATH=f"{tmp_path}:{os.environ['PATH']}") == ["uid-54321"] * 2
    assert ask(PATH=f"{tmp_path}:{os.environ['PATH']}", LOGNAME="ann") == ["", "ann"]
    assert ask()[0] == ""


def test_commands_are_the_checkouts_in_a_folder_with_packages_of_the_same_names(tmp_path: Path) -> None:
    for name in ("scripts", "data"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise ImportError('another {name}')")
    command = ["bash", "-c", 'source "$0/scripts/env.sh" && python -m scripts.watch none', CHECKOUT]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True)
    assert done.returncode == 2 and "none is not a folder" in done.stderr, done.stderr
