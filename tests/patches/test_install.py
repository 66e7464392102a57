"""Apply, revert and the states between, on real files."""

import ctypes
import fcntl
import os
import py_compile
import subprocess
import sys
import time

import pytest

from patches import digest, expected_digest
from patches.errors import Exit
from patches.series import Change, Series, write_folder

ACTOR = "models/actor.py"


def write_series(world, files) -> None:
    folder = world.checkout / "patches" / "openrlhf-1.0"
    write_folder(folder, "1.0", [Change("only.patch", "What: x.", files)])


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


@pytest.mark.parametrize("applied", [1, 2])
def test_a_prefix_is_reported_and_continued(world, before, after, look, applied):
    series = Series.load("1.0")
    for path in series.manifest.files:
        touching = sum(path in {d.path for d in patch.files} for patch in series.patches[:applied])
        text = series.move(path, before.get(path), 0, touching)
        file = world.site / path
        file.unlink(missing_ok=True)
        if text is not None:
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(text)
    status = world.status()
    assert (status["state"], status["applied"], status["total"]) == ("partial", applied, 3)
    assert status["code"] == Exit.PARTIAL == world.call("status")
    assert world.call("verify") == Exit.PARTIAL
    assert world.call("apply") == 0
    assert look(world.site) == after


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
    for command in ("status", "apply", "revert", "verify", "diff"):
        capsys.readouterr()
        assert world.call(command) == Exit.EDITED
        out = "".join(capsys.readouterr())
        assert "openrlhf/models/actor.py" in out and "--wheel" in out
    assert look(world.site) == after | {"openrlhf/models/actor.py": b"mine = 1\n"}


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
    (world.target / "untouched.py").write_bytes(b"other = 1\n")
    assert digest(world.target) == expected_digest("1.0")
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
    write_series(world, {"openrlhf/models/actor.py": (before["openrlhf/models/actor.py"], b"def (:\n")})
    assert world.call("apply") == Exit.NO_COMPILE
    assert "openrlhf/models/actor.py does not compile" in capsys.readouterr().err
    assert look(world.site) == before


def test_the_wheel_gives_back_edited_files(world, before, after, look, make_wheel, tmp_path):
    world.call("apply")
    wheel = make_wheel(tmp_path, before, "1.0")
    (world.target / ACTOR).write_bytes(b"mine = 1\n")
    (world.target / "hooks" / "new.py").write_bytes(b"mine = 1\n")
    assert world.call("apply", "--wheel", str(wheel)) == 0
    assert look(world.site) == after
    (world.target / ACTOR).unlink()
    assert world.call("revert", "--wheel", str(wheel)) == 0
    assert look(world.site) == before
    (world.target / ACTOR).write_bytes(b"mine = 1\n")
    other = make_wheel(tmp_path, before, "1.1")
    assert world.call("apply", "--wheel", str(other)) == Exit.NO_WHEEL
    wrong = make_wheel(tmp_path, before | {"openrlhf/models/actor.py": b"other = 1\n"}, "1.0")
    assert world.call("apply", "--wheel", str(wrong)) == Exit.NO_WHEEL
    assert (world.target / ACTOR).read_bytes() == b"mine = 1\n"


def test_a_failed_write_rolls_back(world, before, after, look):
    """Every write operation fails once: an error, and the old files or (in the clean-up) the new ones."""
    names = set(before) | set(after)
    outcomes = []
    for number in range(200):
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
    assert len(renames) == 4 and all(renames)


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
