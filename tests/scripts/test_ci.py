"""What continuous integration runs begins with a browser, and goes on without one."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(folder: Path, *programs: str, root: bool = True, apt: int = 0) -> tuple[list[str], str]:
    """Return how apt-get was called, and what was said, where PATH has these programs beside it."""
    calls = folder / "calls"
    stand_ins = {"apt-get": f'echo "$*" >>{calls}; exit {apt}', "id": f"echo {0 if root else 1000}"}
    for name, text in (stand_ins | dict.fromkeys(programs, "exit 1")).items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    for name in ("bash", "sh", "env", "dirname", "sed", "timeout"):
        (folder / name).symlink_to(str(shutil.which(name)))
    command = [str(ROOT / ".ci" / "run"), "--help"]  # of scripts/test.sh, which it hands over to
    done = subprocess.run(command, env={"PATH": str(folder)}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("Checks everything on this machine")
    return calls.read_text().splitlines() if calls.exists() else [], done.stderr


def test_a_browser_is_installed_where_there_is_none(tmp_path: Path) -> None:
    calls, said = run(tmp_path)
    assert [call.split()[1] for call in calls] == ["update", "install"] and calls[-1].endswith("chromium")
    assert not said


def test_an_installation_that_fails_is_told_and_does_not_end_the_tests(tmp_path: Path) -> None:
    assert "chromium could not be installed" in run(tmp_path, apt=100)[1]


@pytest.mark.parametrize(("programs", "root"), [(["chromium"], True), ([], False)], ids=["there", "not root"])
def test_nothing_is_installed_where_it_is_there_or_not_allowed(tmp_path: Path, programs: list[str], root: bool) -> None:
    assert run(tmp_path, *programs, root=root) == ([], "")
