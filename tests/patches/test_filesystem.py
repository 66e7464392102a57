"""Apply and revert on the file systems of others: links, read-only folders, failing writes, two calls at once."""

import ctypes
import fcntl
import os
import subprocess
import sys
import time

import pytest

from patches.errors import Exit

ACTOR = "models/actor.py"


def test_hard_links_keep_their_bytes_and_modes_survive(world, pristine_tree, look, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    for number, file in enumerate(sorted(world.target.rglob("*.py"))):
        file.chmod(0o640)
        os.link(file, cache / str(number))
    linked = look(cache)
    assert world.call("apply") == 0
    (world.target / "untouched.py").open("a").write("# an editor that writes in place")
    assert look(cache) == linked
    assert {file.stat().st_nlink for file in world.target.rglob("*.py")} == {1}
    assert (world.target / ACTOR).stat().st_mode & 0o7777 == 0o640
    assert world.call("apply", "--edits-to", str(tmp_path / "edits")) == 0
    assert world.call("revert") == 0
    assert look(cache) == linked and look(world.site) == pristine_tree


def test_symbolic_links_are_refused(world, tmp_path, look):
    outside = tmp_path / "outside"
    (world.target / "models").rename(outside)
    (world.target / "models").symlink_to(outside)
    kept = look(outside)
    assert world.call("apply") == Exit.UNSAFE_FILE
    assert look(outside) == kept
    (world.target / "models").unlink()
    outside.rename(world.target / "models")
    (world.site / "link").symlink_to(world.target)
    assert world.run("apply", "--target", str(world.site / "link")).returncode == 0  # the last --target counts
    assert subprocess.run(
        [sys.executable, "-P", "-m", "patches", "--target", str(world.site / "link")],
        env=world.make_env(), capture_output=True,
    ).returncode == Exit.UNSAFE_FILE  # fmt: skip


@pytest.mark.timeout(600)  # a hundred processes
def test_a_failed_write_rolls_back(world, pristine_tree, patched_tree, look):
    """Every write operation fails once: an error, and the old files or (in the clean-up) the new ones."""
    names = set(pristine_tree) | set(patched_tree)
    outcomes = []
    assert world.call("revert") == 0
    bring_back = world.keep()
    for number in range(300):
        bring_back()
        code, _, errors = world.drive("fail", number, "apply").end()
        if not errors.startswith("fail "):
            assert code == 0
            break
        tree = {path: text for path, text in look(world.site).items() if path in names}
        assert tree in (pristine_tree, patched_tree) and "Traceback" not in errors
        assert code == 0 or (code == Exit.FAILED and "No space left" in errors)
        outcomes.append((errors.split()[1], tree == pristine_tree))
        if number % 3 == 0:
            assert world.call("apply") == 0
            assert look(world.site) == patched_tree
    renames = [undone for event, undone in outcomes if event == "os.rename"]
    assert len(renames) > 10 and all(renames)  # the kept originals too


def test_a_file_that_changes_meanwhile_is_kept(world, pristine_tree, look, monkeypatch, capsys):
    set_times, file = os.utime, world.target / "trainer" / "old.py"

    def edit_meanwhile(*arguments):
        file.write_bytes(b"mine = 1\n")
        set_times(*arguments)

    monkeypatch.setattr(os, "utime", edit_meanwhile)
    assert world.call("apply") == Exit.FAILED
    assert "trainer/old.py changed while" in capsys.readouterr().err
    assert look(world.site) == pristine_tree | {"openrlhf/trainer/old.py": b"mine = 1\n"}


def test_a_lock_on_a_file_that_was_removed_is_taken_again(world, monkeypatch):
    lock, flock = world.site / ".openrlhf-patch.lock", fcntl.flock
    calls: list[int] = []

    def remove_then_flock(handle, how):
        if not calls:
            lock.unlink()  # as the holder before us does at its end
        calls.append(how)
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", remove_then_flock)
    assert world.call("apply") == 0
    assert len(calls) == 2 and not lock.exists()


def _drop_override() -> None:
    # Root ignores mode bits; without this capability they apply.
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        if os.geteuid() == 0 and libc.prctl(24, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


@pytest.mark.parametrize("folder", ["", "models", ".."])
def test_a_read_only_target_is_a_clear_error(world, pristine_tree, look, folder):
    target = (world.target / folder).resolve()
    target.chmod(0o555)
    try:
        done = world.run("apply", preexec_fn=_drop_override)
    finally:
        target.chmod(0o755)
    assert done.returncode == Exit.READ_ONLY, done.stderr
    assert "read-only" in done.stderr and "Traceback" not in done.stderr
    assert look(world.site) == pristine_tree


def test_an_applied_read_only_target_is_fine(world):
    world.call("apply")
    world.site.chmod(0o555)
    try:
        for command in ("apply", "status", "verify", "diff"):
            done = world.run(command, preexec_fn=_drop_override)
            assert done.returncode == 0, done.stderr
    finally:
        world.site.chmod(0o755)


def test_two_at_once(world, patched_tree, look):
    slow = world.drive("slow", 1, "apply")
    deadline = time.monotonic() + 20
    while not list(world.site.glob(".openrlhf-patch*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    others = [world.drive("none", -1, "apply") for _ in range(3)]
    outcomes = [process.end() for process in (slow, *others)]
    assert [code for code, _, _ in outcomes] == [0] * 4, outcomes
    assert [out.count("nothing to change") for _, out, _ in outcomes] == [0, 1, 1, 1]
    assert look(world.site) == patched_tree


def test_apply_and_revert_at_once_leave_one_of_both(world, pristine_tree, patched_tree, look):
    both = [world.drive("none", -1, command) for command in ("apply", "revert", "apply", "revert")]
    assert [process.end()[0] for process in both] == [0] * 4
    assert look(world.site) in (pristine_tree, patched_tree)


def test_a_run_keeps_the_files_that_it_imports(world, patched_tree, look, tmp_path):
    assert world.call("apply") == 0
    config = world.site.parent / "pyvenv.cfg"
    config.touch()
    with config.open() as run:  # as scripts/launch.sh holds it
        fcntl.flock(run, fcntl.LOCK_SH)
        refused = world.run("revert", "--edits-to", str(tmp_path / "mine.patch"))
        assert refused.returncode == Exit.LOCKED and "a run uses" in refused.stderr
        assert look(world.site) == patched_tree
        assert world.call("apply") == 0, "nothing to change: a second run starts"
    assert world.call("revert") == 0


def test_a_held_lock_times_out_and_says_so(world, pristine_tree, look):
    lock = world.site / ".openrlhf-patch.lock"
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        done = world.run("apply", "--wait", "0.2")
        assert done.returncode == Exit.LOCKED
        assert "another call has been patching" in done.stderr
        assert world.read_status()["state"] == "pristine"
    assert look(world.site) == pristine_tree | {lock.name: b""}
    assert world.call("apply") == 0
    assert not lock.exists()
