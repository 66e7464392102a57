"""The command line, the series' files, and the way back from a git repository."""

import os
import subprocess
import sys

import pytest

from patches import load, series, tree
from patches.series import Exit

from .conftest import PATCHED, look


def test_the_state_as_json(world, capsys):
    report = world.read_status(capsys)
    assert report["state"] == "pristine" and report["code"] == Exit.PRISTINE and report["version"] == "1.0"
    assert report["digest"] == load("1.0").pristine and report["expected_digest"] == load("1.0").patched
    assert report["next"] == f"./apply_patches.sh apply --target {world.package}"
    world.call("apply")
    report = world.read_status(capsys)
    assert report["digest"] == report["expected_digest"] and report["next"] == ""


@pytest.mark.parametrize(
    ("metadata", "names"),
    [("Version: 2.0\n", ["2.0", "1.0"]), ("", ["scripts/setup.sh"])],
    ids=["another version", "no version"],
)
def test_an_openrlhf_without_patches_is_refused(world, capsys, metadata, names):
    (world.site / "openrlhf-1.0.dist-info" / "METADATA").write_text(metadata)
    for command in ("status", "apply", "revert", "verify", "diff"):
        assert world.call(command) == Exit.UNKNOWN_VERSION
        error = capsys.readouterr().err
        assert all(name in error for name in names)


def test_another_package_is_refused(world):
    (world.site / "link").symlink_to(world.package)
    for name in ("vllm", "link"):
        world.site.joinpath(name).mkdir(exist_ok=True)
        assert subprocess.run(
            [sys.executable, "-P", "-m", "patches", "status", "--target", world.site / name], capture_output=True
        ).returncode == Exit.MISSING  # fmt: skip


@pytest.mark.parametrize("name", ["first.patch", "second.patch", "series", "digests.json"])
@pytest.mark.parametrize("damage", ["missing", "cut", "CRLF", "a word"])
def test_a_damaged_series_changes_nothing(world, name, damage):
    before, file = look(world.package), world.checkout / "openrlhf-1.0" / name
    text = file.read_bytes()
    changed = {"cut": text[:-20], "CRLF": text.replace(b"\n", b"\r\n"), "a word": text.replace(b"patched", b"patcher")}
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(changed[damage])
    code = world.call("apply")
    if code:
        assert code in (Exit.BAD_SERIES, Exit.UNKNOWN_VERSION) and look(world.package) == before
    else:  # what was damaged means the same
        assert look(world.package) == PATCHED


def test_the_wrapper_finds_its_checkout_and_environment_from_any_folder(world, tmp_path):
    for name in ("openrlhf", "patches"):
        (tmp_path / "elsewhere" / name).mkdir(parents=True)
        (tmp_path / "elsewhere" / name / "__init__.py").write_text("raise SystemExit('the wrong one')\n")
    script = series.__file__.rpartition("/patches/")[0] + "/apply_patches.sh"
    words = [script, "status", "--target", str(tmp_path / "elsewhere" / "openrlhf")]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(words, cwd=tmp_path / "elsewhere", env=environment, capture_output=True, text=True)
    assert done.returncode == Exit.UNKNOWN_VERSION and "./apply_patches.sh" not in done.stderr.splitlines()[0]


@pytest.mark.parametrize("first", ["apply", "revert"])
def test_import_and_export_are_each_others_inverse(world, tmp_path, monkeypatch, first):
    world.call(first)
    kept, work = look(world.checkout), tmp_path / "work"
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as in a hook
    assert world.call("import", "--to", work) == 0 and look(work / "openrlhf") == PATCHED
    assert world.call("export", "--from", work) == 0 and look(world.checkout) == kept
    assert world.call("import", "--to", work) == Exit.USAGE, "it exists"


def test_an_upgrade_is_a_rebase(world, tmp_path):
    work = tmp_path / "work"
    world.call("import", "--to", work)
    [root] = tree.git(work, "rev-list", "--max-parents=0", "HEAD").split()
    tree.git(work, "checkout", "--quiet", "-b", "upstream", root)
    (work / "openrlhf" / "kept.py").write_text("KEPT = 'of 1.1'\n")
    tree.git(work, "commit", "--quiet", "--all", "--message", "openrlhf 1.1")
    tree.git(work, "rebase", "--quiet", "--onto", "upstream", root, "patches")
    assert world.call("export", "--from", work, "--version", "1.1") == 0
    assert [file.name for file in load("1.1").patches] == ["first.patch", "second.patch"]
    assert load("1.1").pristine != load("1.0").pristine
