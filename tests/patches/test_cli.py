"""The command line: exit codes, JSON, targets, the shell wrapper."""

import ast
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import patches
from patches import PatchError, digest, expected_digest
from patches.__main__ import main
from patches.errors import Exit
from patches.series import folder

from .conftest import CHANGES, PRISTINE, write_series


def test_exit_codes_are_distinct_and_in_the_help(world):
    text = world.run("--help").stdout
    flat = " ".join(text.split())
    assert len({code.value for code in Exit}) == len(Exit)
    for code in Exit:
        assert f"{code.value} {code.name.lower().replace('_', ' ')}" in flat


def test_status_json(world):
    report = world.read_status()
    assert report["state"] == "pristine" and report["code"] == Exit.PRISTINE
    assert report["version"] == "1.0"
    assert report["target"] == str(world.target)
    assert report["expected_digest"] == expected_digest("1.0") != report["digest"] == digest(world.target)
    assert "apply" in report["next"] and f"--target {world.target}" in report["next"]
    assert {record["path"]: record["state"] for record in report["files"]} == {
        "openrlhf/hooks/empty.py": "pristine",
        "openrlhf/hooks/new.py": "pristine",
        "openrlhf/models/actor.py": "pristine",
        "openrlhf/trainer/loop.py": "pristine",
        "openrlhf/trainer/old.py": "pristine",
    }
    applied = json.loads(world.run("apply", "--json").stdout)
    assert applied["code"] == 0 and applied["state"] == "applied" and len(applied["changed"]) == 6
    report = world.read_status()
    assert report["state"] == "applied" and report["digest"] == report["expected_digest"]
    assert report["message"] == "applied 3 of 3" and report["next"] == ""


def test_errors_are_json_too(world):
    (world.target / "__init__.py").unlink()
    done = world.run("status", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == report["code"] == Exit.MISSING
    assert "is missing" in report["error"] and report["next"] and done.stderr == ""


def test_the_next_command_can_be_typed(world):
    words = world.read_status()["next"].split()
    assert words[0] == "./apply_patches.sh"
    done = subprocess.run(words, cwd=world.checkout, env=world.make_env(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert world.read_status()["state"] == "applied"


def test_an_unknown_version_names_the_known_ones(world, capsys):
    (world.site / "openrlhf-1.0.dist-info" / "METADATA").write_text("Name: openrlhf\nVersion: 2.0\n")
    for command in ("status", "apply", "revert", "verify", "diff"):
        assert world.call(command) == Exit.UNKNOWN_VERSION
        error = capsys.readouterr().err
        assert "no patches for OpenRLHF 2.0" in error and "1.0" in error
        assert "next: ./apply_patches.sh refresh --to 2.0" in error
    with pytest.raises(PatchError, match=r"2\.0"):
        digest(world.target)
    assert world.call("status", "--version", "1.0") == Exit.PRISTINE


def test_missing_or_ambiguous_version_asks_for_one(world, capsys):
    info = world.site / "openrlhf-1.0.dist-info"
    shutil.copytree(info, world.site / "openrlhf-0.9.dist-info")
    (world.site / "openrlhf-0.9.dist-info" / "METADATA").write_text("Name: openrlhf\nVersion: 0.9\n")
    assert world.call("status") == Exit.UNKNOWN_VERSION
    assert "0.9" in (error := capsys.readouterr().err) and "--version" in error
    shutil.rmtree(world.site / "openrlhf-0.9.dist-info")
    shutil.rmtree(info)
    assert world.call("status") == Exit.UNKNOWN_VERSION
    assert world.call("apply", "--version", "1.0") == 0


def test_another_package_or_version_is_never_taken_for_hand_edits(world, capsys):
    (other := world.site / "vllm").mkdir()
    (other / "__init__.py").touch()
    for command in ("status", "apply", "revert", "diff"):
        assert main([command, "--target", str(other)]) == Exit.MISSING
        assert f"{other} is not an OpenRLHF package" in capsys.readouterr().err
    shutil.copytree(folder("1.0"), folder("2.0"))
    for command in ("status", "apply", "revert", "diff"):
        assert world.call(command, "--version", "2.0") == Exit.UNKNOWN_VERSION
        assert "is OpenRLHF 1.0, not 2.0" in capsys.readouterr().err


def test_a_missing_openrlhf(world):
    env = world.make_env()
    command = [sys.executable, "-I", "-S", "-c"]
    code = f"import sys; sys.path.append({str(world.checkout)!r}); "
    code += "from patches.__main__ import main; sys.exit(main())"
    done = subprocess.run([*command, code], env=env, capture_output=True, text=True)
    assert done.returncode == Exit.MISSING
    assert "not installed" in done.stderr and "--target" in done.stderr
    done = subprocess.run([*command, code, "--target", "nowhere"], env=env, capture_output=True, text=True)
    assert done.returncode == Exit.MISSING and "__init__.py is missing" in done.stderr


def _run_wrapper(world, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The wrapper with `site` as the environment of the Python it picks, without --target."""
    python = world.site.parent / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{world.site}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    env = {**os.environ, "PYTHON": str(python)}
    script = str(world.checkout / "apply_patches.sh")
    return subprocess.run([script, *words], cwd=cwd, env=env, capture_output=True, text=True)


def test_the_wrapper_finds_the_environment_from_any_folder(world, pristine_tree, patched_tree, look, tmp_path):
    # A folder with its own `openrlhf` and `patches`, which must not be used.
    elsewhere = tmp_path / "elsewhere"
    for name in ("openrlhf", "patches"):
        (elsewhere / name).mkdir(parents=True)
        (elsewhere / name / "__init__.py").write_text("raise SystemExit('imported the wrong one')\n")
    # Finding the package must not import it.
    kept = {"openrlhf/__init__.py": b"raise SystemExit('imported')\n"}
    (world.target / "__init__.py").write_bytes(kept["openrlhf/__init__.py"])
    write_series("1.0", CHANGES, PRISTINE | kept)
    done = _run_wrapper(world, elsewhere)
    assert done.returncode == 0, done.stderr
    assert look(world.site) == patched_tree | kept
    assert _run_wrapper(world, Path("/"), "status").returncode == 0
    assert _run_wrapper(world, elsewhere, "revert").returncode == 0
    assert look(world.site) == pristine_tree | kept


def test_the_wrapper_prefers_the_checkouts_own_environment(world):
    python = world.checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "own $*"\n')
    python.chmod(0o755)
    env = {key: value for key, value in os.environ.items() if key != "PYTHON"}
    done = subprocess.run([world.checkout / "apply_patches.sh", "status"], env=env, capture_output=True, text=True)
    assert done.stdout == "own -P -m patches status\n"


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",),
        ("status", "--dry-run"),
        ("refresh",),
        ("refresh", "--to", "1", "--continue"),
        ("export",),
        ("apply", "--to", "1"),
        ("--nonsense",),
    ],
)
def test_wrong_usage(world, words):
    done = world.run(*words)
    assert done.returncode == Exit.USAGE and "usage:" in done.stderr


@pytest.mark.parametrize(
    ("name", "message", "damage"),
    [
        ("series", "differ on third.patch", lambda text: text.replace(b"third.patch\n", b"")),
        ("series", "differ on the order", lambda text: b"second.patch\nfirst.patch\nthird.patch\n"),
        ("series", "twice", lambda text: text + b"third.patch\n"),
        ("series", "CRLF", lambda text: text.replace(b"\n", b"\r\n")),
        ("first.patch", "is not the patch that the manifest names", lambda text: text.replace(b"= 103", b"= 104")),
        ("first.patch", "CRLF", lambda text: text.replace(b"\n", b"\r\n")),
        ("first.patch", "missing: first.patch", None),
        (
            "manifest.json",
            "differ on secant.patch, second.patch",
            lambda text: text.replace(b'"second.patch": ', b'"secant.patch": '),
        ),
        ("manifest.json", "is not a manifest", lambda text: text[:-20]),
        ("manifest.json", "is of version 1.1", lambda text: text.replace(b'"version": "1.0"', b'"version": "1.1"')),
        ("stray.patch", "not in the series: stray.patch", lambda text: b"What: not in the series.\n"),
    ],
)
def test_a_series_is_whole_or_refused(world, pristine_tree, look, capsys, name, message, damage):
    file = world.checkout / "patches" / "openrlhf-1.0" / name
    kept = file.read_bytes() if file.exists() else b""
    if damage:
        file.write_bytes(damage(kept))
    else:
        file.unlink()
    for command in ("apply", "status", "verify", "diff", "revert"):
        assert world.call(command) == Exit.BAD_SERIES, command
        assert message in capsys.readouterr().err, command
    assert look(world.site) == pristine_tree
    if kept:
        file.write_bytes(kept)
        assert world.call("apply") == world.call("verify") == 0


def test_a_damaged_checkout_is_restored_by_the_advice_and_edits_are_kept(world):
    def run_git(*words: str) -> str:
        command = ["git", "-C", world.checkout, "-c", "user.name=a", "-c", "user.email=a@localhost", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "release"]):
        run_git(*words)
    folder = world.checkout / "patches" / "openrlhf-1.0"
    edited = (folder / "first.patch").read_bytes().replace(b"= 103", b"= 104")
    (folder / "first.patch").write_bytes(edited)
    (folder / "second.patch").unlink()
    (folder / "stray.patch").write_bytes(b"")
    report = world.read_status()
    assert report["code"] == Exit.BAD_SERIES
    run_git(*shlex.split(report["next"].replace("git stash push", "stash push")))
    assert world.read_status()["state"] == "pristine"
    assert run_git("show", "stash@{0}:patches/openrlhf-1.0/first.patch").encode() == edited


def test_a_patch_may_be_retired_with_a_reason_alone(world, pristine_tree, patched_tree, look, capsys):
    folder = world.checkout / "patches" / "openrlhf-1.0"
    data = json.loads((folder / "manifest.json").read_text())
    del (
        data["patches"]["third.patch"],
        data["patched"]["openrlhf/trainer/old.py"],
        data["patched"]["openrlhf/hooks/empty.py"],
    )
    (folder / "third.patch").unlink()
    for reason, code in ((None, Exit.BAD_SERIES), ("", Exit.BAD_SERIES), ("1.0 has it", Exit.OK)):
        data["retired"] = {} if reason is None else {"third.patch": reason}
        (folder / "manifest.json").write_text(json.dumps(data))
        assert world.call("apply") == code, reason
    expected = {path: text for path, text in patched_tree.items() if path != "openrlhf/hooks/empty.py"}
    assert look(world.site) == expected | {"openrlhf/trainer/old.py": pristine_tree["openrlhf/trainer/old.py"]}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b" LINE_20 = 20", b" LINE_20 = 21", "second.patch does not apply"),
        (b"+EXTRA = 1", b"+EXTRA = 2", "the patches turn openrlhf/models/actor.py into"),
    ],
)
def test_a_patch_that_does_not_lead_to_the_manifest_is_named(world, pristine_tree, look, capsys, old, new, said):
    _rewrite(world, old, new)
    assert world.call("apply") == Exit.BAD_SERIES
    error = capsys.readouterr().err
    assert said in error and "openrlhf/models/actor.py" in error
    assert look(world.site) == pristine_tree


def _rewrite(world, old: bytes, new: bytes) -> None:
    """Change second.patch, and its hash in the manifest."""
    folder = world.checkout / "patches" / "openrlhf-1.0"
    path, manifest = folder / "second.patch", folder / "manifest.json"
    text = path.read_bytes()
    path.write_bytes(text.replace(old, new))
    digests = [hashlib.sha256(each).hexdigest() for each in (text, path.read_bytes())]
    assert digests[0] != digests[1]
    manifest.write_text(manifest.read_text().replace(*digests))


def test_advice_can_be_typed_for_odd_places(world, tmp_path, make_package, pristine_tree):
    """A path with a space, an editable install, PYTHONPATH before the installed package."""
    pristine = {path: text for path, text in pristine_tree.items() if path.startswith("openrlhf/")}
    odd = make_package(tmp_path / "my site", pristine, "1.0")
    done = world.run("status", "--target", str(odd))
    assert f"--target '{odd}'" not in done.stdout  # the last --target counts, the world's
    command = [sys.executable, "-P", "-m", "patches", "status", "--json", "--target", str(odd)]
    advice = json.loads(subprocess.run(command, env=world.make_env(), capture_output=True, text=True).stdout)["next"]
    words = shlex.split(advice)
    assert subprocess.run(words, cwd=world.checkout, env=world.make_env(), capture_output=True).returncode == 0
    shutil.rmtree(odd.parent / "openrlhf-1.0.dist-info")
    env = world.make_env() | {"PYTHONPATH": f"{world.checkout}:{odd.parent}"}
    command = [sys.executable, "-P", "-m", "patches"]
    error = subprocess.run(command, env=env, capture_output=True, text=True).stderr
    assert "PYTHONPATH names" in error and "unset PYTHONPATH" in error


def test_diff_is_a_patch_that_git_would_take(world, pristine_tree, capsys, tmp_path):
    assert world.call("diff") == 0
    assert capsys.readouterr().out == ""
    world.call("apply")
    assert world.call("diff") == 0
    out = capsys.readouterr().out
    lines = {"--- a/openrlhf/models/actor.py", "-LINE_3 = 3", "+LINE_3 = 103", "+EXTRA = 1", "+++ /dev/null"}
    assert lines <= set(out.splitlines())


def test_only_the_standard_library_is_imported():
    """Workers import `patches` before anything else is there; so does a fresh checkout."""
    for path in Path(patches.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in sys.stdlib_module_names | {"patches"}, (path, name)


def test_the_digest_needs_no_heavy_import(world):
    code = f"import sys, patches; patches.digest({str(world.target)!r}); print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-P", "-c", code], env=world.make_env(), capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert done.returncode == 0, done.stderr
    assert not loaded & {"openrlhf", "argparse", "difflib", "subprocess", "zipfile", "torch"}
