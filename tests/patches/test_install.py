"""Apply, revert and the states between, on real files."""

import fcntl
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from patches import digest, load
from patches.series import Exit

from .conftest import PATCHED, PRISTINE, commit, install_package, look


def test_apply_twice_then_revert_restores_every_byte(world):
    assert world.call("status") == Exit.PRISTINE
    cached = world.site.with_name("cached.py")  # an installer's cache
    os.link(world.package / "kept.py", cached)
    assert world.call("apply") == 0 and look(world.package) == PATCHED
    times = {file: file.stat().st_mtime_ns for file in world.package.rglob("*")}
    assert world.call("apply") == 0 and {file: file.stat().st_mtime_ns for file in times} == times
    assert world.call("status") == world.call("verify") == 0
    assert digest(world.package) == load("1.0").patched
    assert world.call("revert", "--dry-run") == 0 and look(world.package) == PATCHED
    assert world.call("revert") == 0 and look(world.package) == PRISTINE
    assert sorted(path.name for path in world.site.iterdir()) == ["openrlhf", "openrlhf-1.0.dist-info"]
    (world.package / "kept.py").write_text("edited in place\n")
    assert cached.read_text() == "KEPT = True\n"


def replace_by_link(package: Path) -> None:
    (package / "kept.py").rename(package.parent / "kept.py")
    (package / "kept.py").symlink_to("../kept.py")


EDITS = {
    "changed": lambda package: (package / "kept.py").write_text("KEPT = False\n"),
    "undone": lambda package: (package / "trainer" / "loop.py").write_text(PRISTINE["trainer/loop.py"] + "\n"),
    "deleted": lambda package: (package / "kept.py").unlink(),
    "added": lambda package: (package / "mine.py").write_text(""),
    "a link": replace_by_link,
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("first", ["apply", "revert"])
def test_a_hand_edit_anywhere_is_refused_and_kept(world, first, edit):
    world.call(first)
    EDITS[edit](world.package)
    before = look(world.package)
    for command in ("status", "apply", "revert", "verify"):
        assert world.call(command) == Exit.EDITED
    assert look(world.package) == before


def test_a_patch_that_was_undone_by_hand_is_an_edit(world):
    world.call("apply")
    (world.package / "trainer" / "loop.py").write_text(PRISTINE["trainer/loop.py"])
    assert world.call("apply") == Exit.EDITED


def test_hand_edits_are_saved_as_a_patch_that_brings_them_back(world, tmp_path, capsys):
    world.call("apply")
    loop = world.package / "trainer" / "loop.py"
    loop.write_text(loop.read_text() + "# mine\n")
    (world.package / "mine.py").write_text("x = 1\n")
    mine, saved = look(world.package), tmp_path / "edits.patch"
    status = world.read_status(capsys)
    assert status["state"] == "edited" and "--edits-to" in status["next"] and str(world.package) in status["next"]
    assert world.call("apply", "--edits-to", saved) == 0 and look(world.package) == PATCHED
    assert "+# mine" in saved.read_text() and "NEW" not in saved.read_text()
    subprocess.run(["patch", "-p1", "-s", "-d", world.site, "-i", saved], check=True)
    assert look(world.package) == mine
    assert world.call("revert", "--edits-to", saved) == Exit.USAGE, "a saved patch is not overwritten"
    assert look(world.package) == mine


@pytest.mark.parametrize("earlier", [False, True])
def test_a_new_release_of_the_patches_replaces_the_earlier_one(world, tmp_path, earlier):
    world.call("apply")
    if earlier:  # it noted one digest
        (world.site / ".openrlhf-original" / "left").write_text(digest(world.package))
    assert world.call("import", "--to", tmp_path / "work") == 0
    commit(tmp_path / "work", "third", {"kept.py": "KEPT = 3\n"})
    assert world.call("export", "--from", tmp_path / "work") == 0
    assert world.call("status") == Exit.DRIFTED
    assert world.call("apply") == 0 and look(world.package) == PATCHED | {"kept.py": "KEPT = 3\n"}
    assert world.call("revert") == 0 and look(world.package) == PRISTINE


def test_an_installer_may_replace_the_package(world):
    world.call("apply")
    shutil.rmtree(world.package)
    install_package(world.site)
    assert world.call("status") == Exit.PRISTINE
    assert world.call("apply") == 0 and look(world.package) == PATCHED


def test_without_the_original_files_the_remedy_is_to_install_them(world, capsys):
    (world.package / "kept.py").write_text("mine = 1\n")
    assert world.call("apply", "--edits-to", world.site / "edits") == Exit.MISSING
    assert "openrlhf==1.0" in capsys.readouterr().err and look(world.package)["kept.py"] == "mine = 1\n"


def test_a_run_that_uses_the_environment_is_left_alone(world):
    (world.site / "pyvenv.cfg").touch()
    with (world.site / "pyvenv.cfg").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert world.call("apply") == Exit.LOCKED and look(world.package) == PRISTINE
        assert world.call("revert") == 0, "nothing is to be done"
    assert world.call("apply") == 0


# Before the Nth event that writes, the process kills itself, or has no space left.
AT = """
import atexit, os, shutil, signal, sys
left = [{number}]
atexit.register(lambda: left[0] < 0 or print("it writes no more"))
def count(event, args):
    writes = event == "open" and (args[2] or 0) & (os.O_WRONLY | os.O_RDWR)
    if writes or event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"):
        left[0] -= 1
        if left[0] == -1:
            {action}
sys.addaudithook(count)
"""


@pytest.mark.parametrize("action", ["os.kill(os.getpid(), signal.SIGKILL)", "raise OSError(28, 'No space left')"])
@pytest.mark.parametrize("command", ["apply", "revert"])
def test_a_call_that_ends_at_any_write_can_be_repeated(world, tmp_path, command, action):
    world.call("revert" if command == "apply" else "apply")
    shutil.copytree(world.site, tmp_path / "before")
    for number in range(100):
        shutil.rmtree(world.site)
        shutil.copytree(tmp_path / "before", world.site)
        code, output = world.run(command, before=AT.format(number=number, action=action))
        if "it writes no more" in output:
            break
        assert code in (-signal.SIGKILL, Exit.FAILED, 0), output
        left = look(world.package)
        assert all(left[name] in (PRISTINE[name], PATCHED[name]) for name in PRISTINE), "no file is lost or cut"
        following, wanted = (("apply", PATCHED), ("revert", PRISTINE))[number % 2]
        assert world.call(following) == 0 and look(world.package) == wanted, number
        assert world.call("verify") == (0 if following == "apply" else Exit.PRISTINE)
    assert 8 < number < 99


def test_an_edit_after_a_killed_call_is_kept(world):
    world.call("apply")
    world.run("revert", before=AT.format(number=5, action="os.kill(os.getpid(), signal.SIGKILL)"))
    assert world.call("status") == Exit.DRIFTED
    (world.package / "kept.py").write_text("mine = 1\n")
    assert world.call("apply") == Exit.EDITED and look(world.package)["kept.py"] == "mine = 1\n"


def test_a_folder_of_a_containers_image_can_be_patched(world, tmp_path):
    """overlayfs refuses to rename a folder of a lower layer."""
    folders = [tmp_path / name for name in ("lower", "upper", "work", "merged")]
    world.site.rename(folders[0])
    for folder in folders[1:]:
        folder.mkdir()
    options = "lowerdir={},upperdir={},workdir={}".format(*folders)
    if subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", folders[3]], capture_output=True).returncode:
        pytest.skip("this user may not mount an overlay")
    world.site = folders[3]
    try:
        assert world.call("apply") == 0 and look(world.package) == PATCHED
        assert world.call("revert") == 0 and look(world.package) == PRISTINE
    finally:
        subprocess.run(["umount", folders[3]], check=True)
