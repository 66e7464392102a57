"""Apply, revert and the states between, on real files."""

import base64
import csv
import ctypes
import fcntl
import hashlib
import os
import py_compile
import subprocess
import sys
import time

import pytest

from patches import digest, expected_digest
from patches.errors import Exit

from .conftest import HEADER, Change, write_series

ACTOR = "models/actor.py"


def test_apply_twice_then_revert_is_byte_exact(world, before, after, look):
    assert world.call("apply") == 0
    assert look(world.site) == after
    times = {p: p.stat().st_mtime_ns for p in world.target.rglob("*")}
    assert world.call("apply") == 0
    assert {p: p.stat().st_mtime_ns for p in world.target.rglob("*")} == times
    assert world.call("revert") == 0
    assert look(world.site) == before
    assert not (world.target / "hooks").exists()
    assert world.call("revert") == 0


def test_dry_run_changes_nothing(world, before, look, capsys):
    assert world.call("apply", "--dry-run") == 0
    assert "would change openrlhf/models/actor.py" in capsys.readouterr().out
    assert look(world.site) == before


def test_mixed_state_is_drifted_and_can_be_applied_or_reverted(world, before, after, look):
    mixed = after | {"openrlhf/models/actor.py": before["openrlhf/models/actor.py"]}
    for command, end in (("apply", after), ("revert", before)):
        world.call("apply")
        (world.target / ACTOR).write_bytes(mixed["openrlhf/models/actor.py"])
        assert world.call("status") == Exit.DRIFTED
        assert world.call(command) == 0
        assert look(world.site) == end


def test_a_hand_edit_is_never_overwritten(world, after, look, capsys):
    world.call("apply")
    (world.target / ACTOR).write_bytes(b"mine = 1\n")
    for command in ("status", "apply", "revert", "verify"):
        capsys.readouterr()
        assert world.call(command) == Exit.EDITED
        out = "".join(capsys.readouterr())
        assert "openrlhf/models/actor.py: edited" in out and "apply --edits-to hand-edits-1.patch" in out
    assert look(world.site) == after | {"openrlhf/models/actor.py": b"mine = 1\n"}


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_hand_edits_are_shown_and_saved_before_they_are_replaced(world, before, after, look, capsys, tmp_path, command):
    world.call("apply")
    site = world.site
    (world.target / ACTOR).write_bytes(b"# mine\n" + (world.target / ACTOR).read_bytes())
    (world.target / "stray.py").write_bytes(b"x = 1\n")
    (world.target / "untouched.py").unlink()
    mine = look(site)
    capsys.readouterr()
    assert world.call("diff") == 0
    shown = capsys.readouterr().out
    assert "+# mine" in shown and "+x = 1" in shown and "-KEPT = True" in shown and "EXTRA" not in shown
    saved = tmp_path / "edits.patch"
    assert world.call(command, "--edits-to", str(saved)) == 0
    assert look(site) == (after if command == "apply" else before)
    assert saved.read_text() == shown
    assert world.call("apply") == 0
    subprocess.run(["patch", "-p1", "-s", "-d", str(site), "-i", str(saved)], check=True)
    assert look(site) == mine
    assert world.call("apply", "--edits-to", str(saved)) == Exit.USAGE
    assert look(site) == mine


@pytest.mark.parametrize(
    ("damage", "state"),
    [
        (lambda target: (target / "untouched.py").unlink(), "missing"),
        (lambda target: (target / "untouched.py").write_bytes(b"KEPT = 2\n"), "edited"),
        (lambda target: (target / "models" / "extra.py").write_bytes(b""), "stray"),
        (lambda target: (target / "extra.pyc").write_bytes(b""), "stray"),
    ],
)
@pytest.mark.parametrize("start", ["apply", "revert"])
def test_the_whole_package_is_watched(world, damage, state, start):
    world.call(start)
    digest_before = digest(world.target)
    damage(world.target)
    status = world.status()
    assert status["state"] == "edited" and state in [record["state"] for record in status["files"]]
    assert digest(world.target) != digest_before
    assert world.call("apply") == Exit.EDITED


def test_record_is_true_after_an_apply_and_as_before_after_a_revert(world):
    file = world.site / "openrlhf-1.0.dist-info" / "RECORD"
    kept = file.read_bytes()
    assert world.call("apply") == 0
    listed = {}
    for path, code, size in csv.reader(file.read_text().splitlines()):
        text = (world.site / path).read_bytes()
        if code:
            assert code == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(text).digest()).decode().rstrip("=")
            assert int(size) == len(text)
        listed[path] = code
    installed = {p.relative_to(world.site).as_posix() for p in world.target.rglob("*.py")}
    assert {path for path in listed if path.startswith("openrlhf/")} == installed
    file.write_bytes(kept)
    assert world.call("status") == Exit.DRIFTED
    assert world.call("apply") == 0 and world.call("status") == 0
    assert world.call("revert") == 0
    assert file.read_bytes() == kept and not (world.site / ".openrlhf-originals").exists()


def test_a_package_without_record_can_be_patched(world, before, look):
    (world.site / "openrlhf-1.0.dist-info" / "RECORD").unlink()
    for command in ("apply", "status", "verify", "revert"):
        assert world.call(command) == 0
    assert look(world.site) == before


def test_without_git_only_what_needs_it_fails(world, after, look, monkeypatch, tmp_path):
    done = world.run("apply", path=tmp_path)
    assert done.returncode == Exit.NO_GIT and "git is not installed" in done.stderr
    assert f"next: apt install git && ./apply_patches.sh apply --target {world.target}\n" in done.stderr
    world.call("apply")
    for command in ("status", "apply"):
        assert world.run(command, path=tmp_path).returncode == 0
    (world.target / ACTOR).write_bytes(b"mine = 1\n")
    assert world.run("status", path=tmp_path).returncode == Exit.EDITED
    (world.target / ACTOR).write_bytes(after["openrlhf/models/actor.py"])
    assert world.run("revert", path=tmp_path).returncode == 0


def test_a_deleted_file_is_reported(world, capsys):
    (world.target / ACTOR).unlink()
    assert world.call("status") == Exit.EDITED
    assert "the file is gone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("damage", "note"),
    [(lambda text: text.replace(b"\n", b"\r\n"), "CRLF"), (lambda text: text + b"\0", "NUL")],
)
def test_crlf_and_binary_targets_are_named(world, capsys, damage, note):
    file = world.target / ACTOR
    file.write_bytes(damage(file.read_bytes()))
    assert world.call("status") == Exit.EDITED
    assert note in capsys.readouterr().out
    assert world.call("apply") == Exit.EDITED


def test_the_digest_follows_the_bytes(world):
    digests = {digest(world.target)}
    assert expected_digest("1.0") not in digests
    world.call("apply")
    assert digest(world.target) == expected_digest("1.0") == world.status()["digest"]
    (world.target / "hooks" / "empty.py").write_bytes(b"\n")
    assert digest(world.target) != expected_digest("1.0")


def test_hard_links_keep_their_bytes_and_modes_survive(world, before, look, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    for number, file in enumerate(sorted(world.target.rglob("*.py"))):
        file.chmod(0o640)
        os.link(file, cache / str(number))
    linked = look(cache)
    assert world.call("apply") == 0
    assert look(cache) == linked
    assert (world.target / ACTOR).stat().st_nlink == 1
    assert (world.target / ACTOR).stat().st_mode & 0o7777 == 0o640
    assert world.call("revert") == 0
    assert look(cache) == linked and look(world.site) == before


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
        env=world.env(), capture_output=True,
    ).returncode == Exit.UNSAFE_FILE  # fmt: skip


def test_result_with_invalid_syntax_is_rejected(world, before, look, capsys):
    files = {"openrlhf/models/actor.py": (before["openrlhf/models/actor.py"], b"def (:\n")}
    write_series("1.0", [Change("only", HEADER.format("x"), files)])
    assert world.call("apply") == Exit.NO_COMPILE
    assert "openrlhf/models/actor.py does not compile" in capsys.readouterr().err
    assert look(world.site) == before


def test_the_wheel_stands_in_for_originals_that_are_not_kept(world, before, after, look, make_wheel, tmp_path, capsys):
    (world.target / ACTOR).write_bytes(b"mine = 1\n")
    edits, number = tmp_path / "edits", iter(range(9))
    words = lambda: ("apply", "--edits-to", f"{edits}{next(number)}")  # noqa: E731
    assert world.call(*words()) == Exit.NO_WHEEL
    error = capsys.readouterr().err
    again = f"./apply_patches.sh apply --edits-to {edits}0 --target {world.target} --wheel wheels"
    assert "pip download" in error and f"--dest wheels openrlhf==1.0 && {again}\n" in error
    wrong = make_wheel(tmp_path, before | {"openrlhf/models/actor.py": b"other = 1\n"}, "1.0")
    assert world.call(*words(), "--wheel", str(wrong)) == Exit.NO_WHEEL
    assert world.call(*words(), "--wheel", str(make_wheel(tmp_path, before, "1.1"))) == Exit.NO_WHEEL
    assert (world.target / ACTOR).read_bytes() == b"mine = 1\n"
    make_wheel(tmp_path, before, "1.0")
    assert world.call(*words(), "--wheel", str(tmp_path)) == 0  # the folder has wheels of two versions
    assert look(world.site) == after


def test_a_failed_write_rolls_back(world, before, after, look):
    """Every write operation fails once: an error, and the old files or (in the clean-up) the new ones."""
    names = set(before) | set(after)
    outcomes = []
    for number in range(300):
        assert world.call("revert") == 0
        done = world.drive("fail", number, "apply")
        errors = done.communicate(timeout=60)[1]
        if not errors.startswith("fail "):
            assert done.returncode == 0
            break
        tree = {path: text for path, text in look(world.site).items() if path in names}
        assert tree in (before, after) and "Traceback" not in errors
        assert done.returncode == 0 or (done.returncode == Exit.FAILED and "No space left" in errors)
        outcomes.append((errors.split()[1], tree == before))
        assert world.call("apply") == 0
        assert look(world.site) == after
    renames = [undone for event, undone in outcomes if event == "os.rename"]
    assert len(renames) > 10 and all(renames)  # the kept originals too


def test_a_file_that_changes_meanwhile_is_kept(world, before, look, monkeypatch, capsys):
    set_times, file = os.utime, world.target / "trainer" / "old.py"

    def edit_meanwhile(*arguments):
        file.write_bytes(b"mine = 1\n")
        set_times(*arguments)

    monkeypatch.setattr(os, "utime", edit_meanwhile)
    assert world.call("apply") == Exit.FAILED
    assert "trainer/old.py changed while" in capsys.readouterr().err
    assert look(world.site) == before | {"openrlhf/trainer/old.py": b"mine = 1\n"}


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


def _without_override() -> None:
    # Root ignores mode bits; without this capability they apply.
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        if os.geteuid() == 0 and libc.prctl(24, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


@pytest.mark.parametrize("folder", ["", "models", ".."])
def test_a_read_only_target_is_a_clear_error(world, before, look, folder):
    target = (world.target / folder).resolve()
    target.chmod(0o555)
    try:
        done = world.run("apply", preexec_fn=_without_override)
    finally:
        target.chmod(0o755)
    assert done.returncode == Exit.READ_ONLY, done.stderr
    assert "read-only" in done.stderr and "Traceback" not in done.stderr
    assert look(world.site) == before


def test_an_applied_read_only_target_is_fine(world):
    world.call("apply")
    world.site.chmod(0o555)
    try:
        for command in ("apply", "status", "verify", "diff"):
            done = world.run(command, preexec_fn=_without_override)
            assert done.returncode == 0, done.stderr
    finally:
        world.site.chmod(0o755)


READ = "import openrlhf.trainer.loop as m; print(m.step())"


def _import(world, *flags, **env) -> str:
    command = [sys.executable, *flags, "-c", READ]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env = clean | {"PYTHONPATH": str(world.site)} | env
    return subprocess.run(command, env=env, text=True, capture_output=True, check=True).stdout.strip()


def test_python_runs_the_new_code_whatever_bytecode_lies_around(world, tmp_path):
    source = str(world.target / "trainer" / "loop.py")
    prefix = {"PYTHONPYCACHEPREFIX": str(tmp_path / "elsewhere")}  # bytecode that we cannot find
    for command, result in (("apply", "patch"), ("revert", "stock"), ("apply", "patch")):
        other = "stock" if result == "patch" else "patch"
        assert _import(world) == _import(world, **prefix) == other
        # Bytecode that Python never compares with its source.
        py_compile.compile(source, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
        assert world.call(command) == 0  # within the same second, and to a source of the same size
        assert _import(world, **prefix) == _import(world) == result


def test_two_at_once(world, after, look):
    slow = world.drive("slow", 1, "apply")
    deadline = time.monotonic() + 20
    while not list(world.site.glob(".openrlhf-patch*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    others = [world.drive("none", -1, "apply") for _ in range(3)]
    outcomes = [(p.communicate(timeout=60), p.returncode) for p in (slow, *others)]
    assert [code for _, code in outcomes] == [0] * 4, outcomes
    assert [out.count("nothing to change") for (out, _), _ in outcomes] == [0, 1, 1, 1]
    assert look(world.site) == after


def test_apply_and_revert_at_once_leave_one_of_both(world, before, after, look):
    for _ in range(3):
        both = [world.drive("none", -1, command) for command in ("apply", "revert", "apply", "revert")]
        assert [p.wait(timeout=60) for p in both] == [0] * 4
        for p in both:
            p.communicate()
        assert look(world.site) in (before, after)


def test_a_held_lock_times_out_and_says_so(world, before, look):
    lock = world.site / ".openrlhf-patch.lock"
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        done = world.run("apply", "--wait", "0.2")
        assert done.returncode == Exit.LOCKED
        assert "another call has been patching" in done.stderr
        assert world.status()["state"] == "pristine"
    assert look(world.site) == before | {lock.name: b""}
    assert world.call("apply") == 0
    assert not lock.exists()
