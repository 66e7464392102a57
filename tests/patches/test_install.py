"""Apply, revert and the states between, on real files."""

import base64
import csv
import hashlib
import os
import py_compile
import subprocess
import sys

import pytest

from patches import digest, expected_digest
from patches.errors import Exit

from .conftest import HEADER, Change, write_series

ACTOR = "models/actor.py"


def test_apply_twice_then_revert_is_byte_exact(world, pristine_tree, patched_tree, look):
    assert world.call("apply") == 0
    assert look(world.site) == patched_tree
    times = {p: p.stat().st_mtime_ns for p in world.target.rglob("*")}
    assert world.call("apply") == 0
    assert {p: p.stat().st_mtime_ns for p in world.target.rglob("*")} == times
    assert world.call("revert") == 0
    assert look(world.site) == pristine_tree
    assert not (world.target / "hooks").exists()
    assert world.call("revert") == 0


def test_dry_run_changes_nothing(world, pristine_tree, look, capsys):
    assert world.call("apply", "--dry-run") == 0
    assert "would change openrlhf/models/actor.py" in capsys.readouterr().out
    assert look(world.site) == pristine_tree


def test_mixed_state_is_drifted_and_can_be_applied_or_reverted(world, pristine_tree, patched_tree, look):
    mixed = patched_tree | {"openrlhf/models/actor.py": pristine_tree["openrlhf/models/actor.py"]}
    for command, end in (("apply", patched_tree), ("revert", pristine_tree)):
        world.call("apply")
        (world.target / ACTOR).write_bytes(mixed["openrlhf/models/actor.py"])
        assert world.call("status") == Exit.DRIFTED
        assert world.call(command) == 0
        assert look(world.site) == end


def test_a_hand_edit_is_never_overwritten(world, patched_tree, look, capsys):
    world.call("apply")
    (world.target / ACTOR).write_bytes(b"mine = 1\n")
    for command in ("status", "apply", "revert", "verify"):
        capsys.readouterr()
        assert world.call(command) == Exit.EDITED
        out = "".join(capsys.readouterr())
        assert "openrlhf/models/actor.py: edited" in out and "apply --edits-to hand-edits-1.patch" in out
    assert look(world.site) == patched_tree | {"openrlhf/models/actor.py": b"mine = 1\n"}


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_hand_edits_are_shown_and_saved_before_they_are_replaced(
    world, pristine_tree, patched_tree, look, capsys, tmp_path, command
):
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
    assert world.call(command, "--edits-to", str(saved), "--dry-run") == 0
    assert f"would save your edits in {saved}" in capsys.readouterr().out and not saved.exists()
    assert world.call(command, "--edits-to", str(saved)) == 0
    assert f"saved your edits in {saved}" in capsys.readouterr().out
    assert look(site) == (patched_tree if command == "apply" else pristine_tree)
    assert saved.read_text() == shown
    assert world.call("apply") == 0
    capsys.readouterr()
    assert world.call("apply", "--edits-to", str(tmp_path / "none.patch")) == 0
    assert "there are no hand edits to save" in capsys.readouterr().out
    subprocess.run(["patch", "-p1", "-s", "-d", str(site), "-i", str(saved)], check=True)
    assert look(site) == mine
    assert world.call("apply", "--edits-to", str(saved)) == Exit.USAGE
    assert look(site) == mine


@pytest.mark.parametrize(
    ("damage", "state"),
    [
        (lambda target: (target / "untouched.py").unlink(), "missing"),
        (lambda target: (target / "untouched.py").write_bytes(b"KEPT = 2\n"), "edited"),
        (lambda target: (target / "untouched.py").write_bytes(b"KEPT = True\r\n"), "edited"),
        (lambda target: (target / ACTOR).write_bytes((target / ACTOR).read_bytes() + b"\0"), "edited"),
        (lambda target: (target / "models" / "extra.py").write_bytes(b""), "stray"),
        (lambda target: (target / "extra.pyc").write_bytes(b""), "stray"),
    ],
)
@pytest.mark.parametrize("start", ["apply", "revert"])
def test_the_whole_package_is_watched(world, damage, state, start):
    world.call(start)
    digest_before = digest(world.target)
    assert (digest_before == expected_digest("1.0")) == (start == "apply")
    damage(world.target)
    status = world.read_status()
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


def test_a_package_without_record_can_be_patched(world, pristine_tree, look):
    (world.site / "openrlhf-1.0.dist-info" / "RECORD").unlink()
    for command in ("apply", "status", "verify", "revert"):
        assert world.call(command) == 0
    assert look(world.site) == pristine_tree


def test_without_git_only_what_needs_it_fails(world, patched_tree, look, monkeypatch, tmp_path):
    done = world.run("apply", path=tmp_path)
    assert done.returncode == Exit.NO_GIT and "git is not installed" in done.stderr
    assert f"next: apt install git && ./apply_patches.sh apply --target {world.target}\n" in done.stderr
    world.call("apply")
    for command in ("status", "apply"):
        assert world.run(command, path=tmp_path).returncode == 0
    (world.target / ACTOR).write_bytes(b"mine = 1\n")
    assert world.run("status", path=tmp_path).returncode == Exit.EDITED
    (world.target / ACTOR).write_bytes(patched_tree["openrlhf/models/actor.py"])
    assert world.run("revert", path=tmp_path).returncode == 0


def test_result_with_invalid_syntax_is_rejected(world, pristine_tree, look, capsys):
    files = {"openrlhf/models/actor.py": (pristine_tree["openrlhf/models/actor.py"], b"def (:\n")}
    write_series("1.0", [Change("only", HEADER.format("x"), files)])
    assert world.call("apply") == Exit.NO_COMPILE
    assert "openrlhf/models/actor.py does not compile" in capsys.readouterr().err
    assert look(world.site) == pristine_tree


def test_the_wheel_stands_in_for_originals_that_are_not_kept(
    world, pristine_tree, patched_tree, look, make_wheel, tmp_path, capsys
):
    (world.target / ACTOR).write_bytes(b"mine = 1\n")
    edits, number = tmp_path / "edits", iter(range(9))
    words = lambda: ("apply", "--edits-to", f"{edits}{next(number)}")  # noqa: E731
    assert world.call(*words()) == Exit.NO_WHEEL
    error = capsys.readouterr().err
    again = f"./apply_patches.sh apply --edits-to {edits}0 --target {world.target} --wheel wheels"
    assert "pip download" in error and f"--dest wheels openrlhf==1.0 && {again}\n" in error
    wrong = make_wheel(tmp_path, pristine_tree | {"openrlhf/models/actor.py": b"other = 1\n"}, "1.0")
    assert world.call(*words(), "--wheel", str(wrong)) == Exit.NO_WHEEL
    assert world.call(*words(), "--wheel", str(make_wheel(tmp_path, pristine_tree, "1.1"))) == Exit.NO_WHEEL
    assert (world.target / ACTOR).read_bytes() == b"mine = 1\n"
    make_wheel(tmp_path, pristine_tree, "1.0")
    assert world.call(*words(), "--wheel", str(tmp_path)) == 0  # the folder has wheels of two versions
    assert look(world.site) == patched_tree


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
