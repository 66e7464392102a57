"""Continuous integration first installs a browser, and continues if that fails."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(folder: Path, *programs: str, root: bool = True, apt: int = 0) -> tuple[list[str], str]:
    """Return the calls of apt-get and the output, with these programs also on PATH."""
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


def test_missing_browser_is_installed(tmp_path: Path) -> None:
    calls, said = run(tmp_path)
    assert [call.split()[1] for call in calls] == ["update", "install"] and calls[-1].endswith("chromium")
    assert not said


def test_failed_installation_is_reported_and_does_not_end_the_tests(tmp_path: Path) -> None:
    assert "chromium" in run(tmp_path, apt=100)[1]


@pytest.mark.parametrize(("programs", "root"), [(["chromium"], True), ([], False)], ids=["there", "not root"])
def test_nothing_is_installed_if_present_or_not_permitted(tmp_path: Path, programs: list[str], root: bool) -> None:
    assert run(tmp_path, *programs, root=root) == ([], "")
