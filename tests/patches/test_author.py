"""export and import: a series and a git worktree hold the same, byte for byte."""

import os
import shutil
import subprocess

import pytest

from patches.__main__ import main
from patches.errors import Exit

from .conftest import HEADER

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="export and import need git")


def run_git(worktree, *words: str) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"GIT_CONFIG_GLOBAL": os.devnull}
    command = ["git", "-C", str(worktree), "-c", "user.name=a", "-c", "user.email=a@localhost", *words]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def folder(world):
    return world.checkout / "patches" / "openrlhf-1.0"


@pytest.fixture
def worktree(world, tmp_path):
    assert world.call("import", "--to", str(tmp_path / "work")) == 0
    return tmp_path / "work"


@pytest.mark.parametrize("installed", ["pristine", "applied", "wheel"])
def test_the_round_trip_is_byte_identical(world, pristine_tree, folder, look, make_wheel, tmp_path, installed):
    kept = look(folder)
    work = tmp_path / "work"
    if installed == "wheel":
        assert main(["import", "--wheel", str(make_wheel(tmp_path, pristine_tree, "1.0")), "--to", str(work)]) == 0
    else:
        world.call("apply" if installed == "applied" else "revert")
        assert world.call("import", "--to", str(work)) == 0
    assert run_git(work, "log", "--format=%s", "--reverse").split("\n")[:4] == [
        "openrlhf 1.0", "first", "second", "third"
    ]  # fmt: skip
    times = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert main(["export", "--from", str(work)]) == 0
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == times
    assert look(folder) == kept


def test_the_worktree_is_the_patched_package(world, worktree, patched_tree):
    files = run_git(worktree, "ls-files").split()
    expected = {path: text for path, text in patched_tree.items() if path.startswith("openrlhf/")}
    assert {path: (worktree / path).read_bytes() for path in files} == expected


def test_import_is_the_same_anywhere(world, worktree, tmp_path, monkeypatch):
    config = tmp_path / ".gitconfig"
    config.write_text("[user]\nname = x\nemail = x@x\n[core]\nautocrlf = true\n[commit]\ngpgsign = true\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "wrong"))
    assert world.call("import", "--to", str(tmp_path / "other")) == 0
    assert run_git(worktree, "rev-parse", "HEAD") == run_git(tmp_path / "other", "rev-parse", "HEAD")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a worktree to somebody else")
def test_export_reads_a_worktree_of_another_user(worktree):
    for folder in (worktree, worktree / ".git"):
        os.chown(folder, 65534, 65534)
    assert main(["export", "--from", str(worktree)]) == 0


def test_a_new_commit_becomes_a_patch(world, worktree, folder, capsys):
    (worktree / "openrlhf" / "untouched.py").write_text("KEPT = False\n")
    (worktree / "openrlhf" / "__pycache__").mkdir()
    (worktree / "openrlhf" / "__pycache__" / "untouched.cpython-311.pyc").write_bytes(b"x")
    assert main(["export", "--from", str(worktree)]) == Exit.BAD_WORKTREE
    assert "uncommitted changes" in capsys.readouterr().err
    run_git(worktree, "commit", "-qam", "fourth", "-m", HEADER.format("the fourth"))
    assert main(["export", "--from", str(worktree)]) == 0
    assert (folder / "fourth.patch").read_text() == (
        "From: gptoss-grpo <patches@localhost>\nDate: Sat, 1 Jan 2000 00:00:00 +0000\nSubject: fourth\n\n"
        + HEADER.format("the fourth")
        + "\n\n--- a/openrlhf/untouched.py\n+++ b/openrlhf/untouched.py\n"
        "@@ -1 +1 @@\n-KEPT = True\n+KEPT = False\n"
    )
    assert (folder / "series").read_text().endswith("third.patch\nfourth.patch\n")
    assert world.call("apply") == 0
    assert (world.target / "untouched.py").read_text() == "KEPT = False\n"
    run_git(worktree, "reset", "-q", "--hard", "HEAD~2")
    series = (folder / "series").read_text()
    (folder / "series").write_text("# Why this order.\n" + series)
    assert main(["export", "--from", str(worktree)]) == 0
    assert (folder / "series").read_text().startswith("# Why this order.\n")
    assert sorted(path.name for path in folder.glob("*.patch")) == ["first.patch", "second.patch"]


@pytest.mark.parametrize(
    ("path", "content", "message", "complaint"),
    [
        ("openrlhf/a.py", b"a\r\n", ["name", "-m", HEADER], "CRLF"),
        ("openrlhf/a.py", b"a\0", ["name", "-m", HEADER], "NUL"),
        ("outside.py", b"a\n", ["name", "-m", HEADER], "not below openrlhf/"),
        ("openrlhf/a.py", b"a\n", ["A subject", "-m", HEADER], "file stem"),
        ("openrlhf/a.py", b"a\n", ["name"], "the body must be a header with Description"),
        ("openrlhf/a.py", b"a\n", ["first", "-m", HEADER], "several commits are named first.patch"),
        ("openrlhf/a.py", b"a\n", ["name", "-m", HEADER + "\n--- a/openrlhf/b.py"], "lines of a diff"),
    ],
)
def test_commit_that_cannot_be_a_patch_is_rejected(worktree, folder, look, capsys, path, content, message, complaint):
    kept = look(folder)
    (worktree / path).write_bytes(content)
    run_git(worktree, "add", "-A")
    run_git(worktree, "commit", "-q", "-m", *message)
    assert main(["export", "--from", str(worktree)]) == Exit.BAD_WORKTREE
    assert complaint in capsys.readouterr().err
    assert look(folder) == kept


def test_missing_repository_and_non_empty_folder_are_rejected(world, tmp_path, worktree):
    (tmp_path / "empty").mkdir()
    assert main(["export", "--from", str(tmp_path / "empty")]) == Exit.BAD_WORKTREE
    assert world.call("import", "--to", str(worktree)) == Exit.BAD_WORKTREE


def test_git_am_takes_the_files(world, worktree, folder, pristine_tree, tmp_path):
    """Plain `git am`, in a repository with the pristine package alone."""
    other = tmp_path / "other"
    for path, text in pristine_tree.items():
        (other / path).parent.mkdir(parents=True, exist_ok=True)
        (other / path).write_bytes(text)
    run_git(other.parent, "init", "-q", str(other))
    run_git(other, "add", "-A")
    run_git(other, "commit", "-qm", "pristine")
    order = (folder / "series").read_text().splitlines()[1:]
    run_git(other, "am", "-q", "--keep-cr", *(str(folder / name) for name in order))
    assert run_git(other, "rev-parse", "HEAD:openrlhf") == run_git(worktree, "rev-parse", "HEAD:openrlhf")
    assert run_git(other, "log", "-1", "--format=%B").startswith("third\n\nDescription: the third.\n A second line.\n")
