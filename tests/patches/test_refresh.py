"""refresh: git rebases the series onto another version; where it stops, the user edits and continues."""

import json
import shutil
import subprocess

import pytest

from patches.__main__ import main
from patches.errors import Exit
from patches.series import Series, folder, known_versions

from .conftest import HEADER, PRISTINE, Change, write_series

ACTOR = "openrlhf/models/actor.py"
LOOP = "openrlhf/trainer/loop.py"


@pytest.fixture
def refresh(world, make_wheel, tmp_path, capsys):
    """Runs `refresh --to 1.1` with a wheel of the tree, or another step of it; returns exit code and report."""

    def run(tree=None, *words: str):
        start = () if tree is None else ("--to", "1.1", "--wheel", str(make_wheel(tmp_path, tree, "1.1")))
        capsys.readouterr()
        code = (world.call if tree is not None else call)(
            "refresh", *start, *words, "--work", str(tmp_path / "work"), "--json"
        )
        said = json.loads(capsys.readouterr().out)
        return code, said["text"] or said["error"]

    def call(*words: str) -> int:
        return main([*words])

    return run


@pytest.fixture
def work(tmp_path):
    return tmp_path / "work"


def install_tree(version, tree, package, folder):
    return package(folder, {path: text for path, text in tree.items() if path.startswith("openrlhf/")}, version)


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_a_version_without_stops_needs_no_patch_of_its_own(
    world, pristine_tree, look, refresh, make_package, tmp_path, command
):
    world.call(command)
    installed, kept = look(world.site), look(folder("1.0"))
    new = dict(pristine_tree)
    new[ACTOR] = b"# a new first line\n" + pristine_tree[ACTOR].replace(b"LINE_10 = 10\n", b"# new\n" * 5)
    code, report = refresh(new)
    assert code == 0 and "1.0 -> 1.1: 3 patches, 0 retired; 0 differ from 1.0's" in report
    assert look(world.site) == installed and look(folder("1.0")) == kept
    assert [path.name for path in folder("1.1").iterdir()] == ["manifest.json"]
    target = install_tree("1.1", new, make_package, tmp_path / "newer")
    assert main(["apply", "--target", str(target)]) == main(["verify", "--target", str(target)]) == 0
    text = (target / "models" / "actor.py").read_bytes()
    assert text == new[ACTOR].replace(b"LINE_3 = 3\n", b"LINE_3 = 103\nMORE = 1\n").replace(
        b"LINE_20 = 20\n", b"LINE_20 = 20\nEXTRA = 1\n"
    )


def test_a_stop_shows_both_changes_and_goes_on_with_the_users_text(
    world, pristine_tree, refresh, work, make_package, tmp_path
):
    new = pristine_tree | {ACTOR: pristine_tree[ACTOR].replace(b"LINE_3 = 3\n", b"LINE_3 = 7\n")}
    code, report = refresh(new)
    assert code == Exit.CONFLICTS and known_versions() == ["1.0"]
    assert "stopped at first.patch (1 of 3)" in report and ACTOR in report and "line 3" in report
    [removed] = [line for line in report.splitlines() if "- LINE_3 = 3" in line]
    assert removed.count("- LINE_3 = 3") == 2
    ours = [line.partition(" | ")[2] for line in report.splitlines() if " | " in line]
    assert "+ LINE_3 = 103" in ours and "+ MORE = 1" in ours
    assert not [line for line in ours if "LINE_3 = 7" in line]
    assert f"refresh --continue --work {work}" in report
    assert refresh(None, "--continue")[1].startswith("there are conflict marks left in openrlhf/models/actor.py")
    _edit(work / ACTOR, b"LINE_3 = 107\nMORE = 1\n")
    code, report = refresh(None, "--continue")
    assert code == 0 and "1 differ from 1.0's" in report
    assert refresh(None, "--continue") == (0, report), "a second time changes nothing"
    assert sorted(path.name for path in folder("1.1").iterdir()) == ["first.patch", "manifest.json"]
    assert list(Series.load_checked("1.1").patches) == ["first.patch", "second.patch", "third.patch"]
    target = install_tree("1.1", new, make_package, tmp_path / "newer")
    assert main(["apply", "--target", str(target)]) == 0
    assert b"LINE_3 = 107\nMORE = 1\n" in (target / "models" / "actor.py").read_bytes()
    shutil.rmtree(folder("1.1"))
    assert main(["status", "--target", str(target)]) == Exit.UNKNOWN_VERSION


def _edit(file, text: bytes) -> None:
    """Replace the region between conflict marks."""
    head, _, rest = file.read_bytes().partition(b"<<<<<<<")
    file.write_bytes(head + text + rest.partition(b">>>>>>>")[2].partition(b"\n")[2])


def test_a_file_that_moved_is_followed(world, pristine_tree, refresh):
    new = {path: text for path, text in pristine_tree.items() if path != ACTOR}
    new["openrlhf/elsewhere/actor.py"] = pristine_tree[ACTOR]
    code, report = refresh(new)
    assert code == 0, report
    assert {"openrlhf/elsewhere/actor.py"} <= Series.load("1.1").patched.keys()


def test_a_conflict_in_a_moved_file_names_its_old_place(pristine_tree, refresh):
    new = {path: text for path, text in pristine_tree.items() if path != ACTOR}
    new["openrlhf/elsewhere/actor.py"] = pristine_tree[ACTOR].replace(b"LINE_3 = 3\n", b"LINE_3 = 7\n")
    code, report = refresh(new)
    assert code == Exit.CONFLICTS and f"openrlhf/elsewhere/actor.py (moved from {ACTOR})" in report


def test_a_file_that_upstream_deleted_shows_our_change(pristine_tree, refresh):
    code, report = refresh({path: text for path, text in pristine_tree.items() if path != LOOP})
    assert code == Exit.CONFLICTS and "stopped at second.patch" in report
    assert "upstream deleted or replaced this file" in report and "+    return 'patch'" in report


def test_a_patch_that_upstream_took_is_retired_with_a_reason(pristine_tree, patched_tree, refresh, work):
    new = pristine_tree | {LOOP: patched_tree[LOOP]}
    new[ACTOR] = patched_tree[ACTOR].replace(b" = 103\nMORE = 1\n", b" = 3\n")
    code, report = refresh(new)
    assert code == Exit.CONFLICTS and "nothing is left of second.patch" in report
    assert f"--work {work} --retire second.patch REASON" in report
    for words, said in (
        (("nonsense", "why"), "there is no patch nonsense.patch in the series"),
        (("first", "why"), "first.patch still changes the package"),
        (("second", " "), "second.patch needs a reason"),
    ):
        code, report = refresh(None, "--continue", "--retire", *words)
        assert code == Exit.USAGE and said in report and known_versions() == ["1.0"]
    code, report = refresh(None, "--continue", "--retire", "second", "1.1 has it")
    assert code == 0 and "2 patches, 1 retired" in report
    assert Series.load_checked("1.1").retired == {"second.patch": "1.1 has it"}


def test_a_patch_that_the_user_empties_is_retired_too(pristine_tree, refresh, work):
    new = pristine_tree | {LOOP: b"def step():\n    return 'new'"}
    code, report = refresh(new)
    assert code == Exit.CONFLICTS and "stopped at second.patch" in report
    (work / LOOP).write_bytes(new[LOOP])
    subprocess.run(["git", "-C", work, "checkout", "-q", "HEAD", "--", ACTOR], check=True)
    code, report = refresh(None, "--continue")
    assert code == Exit.CONFLICTS and "nothing is left of second.patch" in report
    assert refresh(None, "--continue", "--retire", "second.patch", "not needed")[0] == 0


@pytest.fixture
def invalid_merge(world, pristine_tree, refresh):
    """A stop at lines that merge into invalid code: an `await` in a function that is no longer a coroutine."""
    loop = b"async def step():\n    a = 1\n    b = 2\n    return a + b\n"
    waiting = loop.replace(b"2\n", b"2\n    await hook()\n")
    write_series("1.0", [Change("wait", HEADER.format("x"), {LOOP: (loop, waiting)})], PRISTINE | {LOOP: loop})
    (world.site / LOOP).write_bytes(loop)
    return refresh(pristine_tree | {LOOP: loop.replace(b"async def", b"def")})


def test_merged_text_that_is_no_python_is_a_stop(invalid_merge, refresh, work):
    code, report = invalid_merge
    assert code == Exit.CONFLICTS and "stopped at wait.patch" in report and "not valid Python" in report
    assert refresh(None, "--continue")[0] == Exit.CONFLICTS  # nothing was mended
    (work / LOOP).write_bytes((work / LOOP).read_bytes().replace(b"await hook()", b"hook()"))
    code, report = refresh(None, "--continue")
    assert code == 0, report
    assert b"+    hook()" in (folder("1.1") / "wait.patch").read_bytes()


def test_a_patch_that_is_no_python_can_be_emptied(invalid_merge, refresh, work):
    (work / LOOP).write_bytes((work / LOOP).read_bytes().replace(b"    await hook()\n", b""))
    code, report = refresh(None, "--continue")
    assert code == Exit.CONFLICTS and "nothing is left of wait.patch" in report
    assert refresh(None, "--continue", "--retire", "wait.patch", "not needed")[0] == 0


def test_the_end_names_changed_ground_pins_and_tests(world, pristine_tree, refresh):
    """The patch fits, but the function that its header relies on is another one."""
    (world.checkout / "requirements").mkdir()
    (world.checkout / "requirements" / "lock-cpu.txt").write_text(
        "openrlhf==1.0 --hash=sha256:00\nother==1\ntorch==2.1.0\n"
    )
    flag = b"def add(parser):\n    parser.add_argument('--kind', choices=['a', 'b'])\n    return parser\n\n\nLAST = 0\n"
    header = HEADER.replace("loop.py: step", "loop.py: add, --kind, gone")
    change = Change("flag", header, {LOOP: (flag, flag + b"\n\nX = 1\n")})
    write_series("1.0", [change], PRISTINE | {LOOP: flag})
    (world.site / LOOP).write_bytes(flag)
    code, report = refresh(pristine_tree | {LOOP: flag.replace(b"'b'", b"'c'")})
    assert code == 0, report
    assert f"upstream changed {LOOP}: --kind, which these patches rely on: flag" in report
    assert "choices=['a', 'c']" in report
    assert f"{LOOP}: gone" not in report
    assert "requirements/lock-cpu.txt:1: openrlhf==1.0  (openrlhf 1.1)" in report
    assert "requirements/lock-cpu.txt:3: torch==2.1.0  (upstream: ==2.1.0 -> ==2.1.1)" in report
    assert "other" not in report and "pytest tests/patches/test_install.py" in report


def test_the_old_wheel_can_stand_in_for_the_install(world, pristine_tree, refresh, make_wheel, tmp_path):
    (world.target / "models" / "actor.py").write_bytes(b"mine = 1\n")
    assert (
        main(["refresh", "--target", str(world.target), "--to", "1.1", "--work", str(tmp_path / "no")]) == Exit.NO_WHEEL
    )
    old = make_wheel(tmp_path, pristine_tree, "1.0")
    assert refresh(pristine_tree, "--wheel", str(old))[0] == 0


def test_refresh_starts_only_in_a_new_folder(pristine_tree, refresh, work):
    work.mkdir()
    (work / "mine").write_text("x")
    assert main(["refresh", "--continue", "--work", str(work)]) == Exit.BAD_WORKTREE
    assert (work / "mine").read_text() == "x"


def test_a_refresh_that_is_under_way_is_named_to_a_second_start_and_to_an_export(
    world, pristine_tree, refresh, work, capsys
):
    refresh(pristine_tree | {ACTOR: pristine_tree[ACTOR].replace(b"LINE_3 = 3\n", b"LINE_3 = 7\n")})
    for words in (("refresh", "--to", "1.1", "--work", str(work)), ("export", "--from", str(work))):
        capsys.readouterr()
        assert main([*words]) == Exit.BAD_WORKTREE
        said = capsys.readouterr().err
        assert str(work) in said and f"./apply_patches.sh refresh --continue --work {work}" in said
        assert "commit --all" not in said


@pytest.mark.parametrize(("version", "said"), [("banana", "is not a version"), ("1.0", "starts from 1.0")])
def test_what_cannot_be_refreshed_to_is_refused_before_a_download(world, tmp_path, monkeypatch, capsys, version, said):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert main(["refresh", "--to", version, "--work", str(tmp_path / "out")]) == Exit.USAGE
    assert said in capsys.readouterr().err


def test_a_reason_given_before_the_end_is_kept(pristine_tree, patched_tree, refresh, work):
    new = pristine_tree | {
        LOOP: patched_tree[LOOP],
        ACTOR: patched_tree[ACTOR].replace(b" = 103\nMORE = 1\n", b" = 7\n"),
    }
    code, report = refresh(new)
    assert code == Exit.CONFLICTS and "stopped at first.patch" in report
    assert refresh(None, "--continue", "--retire", "second", "1.1 has it")[0] == Exit.CONFLICTS
    _edit(work / ACTOR, b"LINE_3 = 107\nMORE = 1\n")
    code, report = refresh(None, "--continue")
    assert code == 0, report
    assert Series.load_checked("1.1").retired == {"second.patch": "1.1 has it"}


def test_unavailable_wheel_is_a_clear_error(world, tmp_path, make_wheel, monkeypatch, capsys):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    words = ("refresh", "--to", "9.9.9", "--work", str(tmp_path / "out"))
    assert world.call(*words) == Exit.NO_WHEEL
    error = capsys.readouterr().err
    assert "could not download openrlhf 9.9.9" in error and "next:" in error and "pip download" in error
    (tmp_path / "bad.whl").write_bytes(b"no zip")
    for wheel in (tmp_path / "bad.whl", tmp_path / "none.whl", make_wheel(tmp_path, {}, "9.9.9")):
        assert world.call(*words, "--wheel", str(wheel)) == Exit.NO_WHEEL
    assert known_versions() == ["1.0"]


def test_drift_tells_what_upstream_does_in_part_by_then(
    world, pristine_tree, patched_tree, make_wheel, tmp_path, capsys
):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    header = HEADER.format("x") + "\nApplied-Upstream: 1.2 (the flag);\n not the rest\nDelete-When: never"
    change = Change("flag", header, {LOOP: (pristine_tree[LOOP], patched_tree[LOOP])})
    write_series("1.0", [change])
    for version in ("1.1", "1.2", "1.10"):
        make_wheel(wheels, pristine_tree, version)
    capsys.readouterr()
    assert world.call("drift", "--wheel", str(wheels), "--json") == 0
    versions = json.loads(capsys.readouterr().out)["versions"]
    told = ["flag (the flag); not the rest"]
    assert {each["version"]: each["partly"] for each in versions} == {"1.1": [], "1.2": told, "1.10": told}


def test_drift_tells_what_fits_stops_and_is_upstream(world, pristine_tree, patched_tree, make_wheel, tmp_path, capsys):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    make_wheel(wheels, pristine_tree, "1.1")
    new = pristine_tree | {ACTOR: pristine_tree[ACTOR].replace(b"LINE_3 = 3\n", b"LINE_3 = 7\n")}
    new |= {LOOP: patched_tree[LOOP], "openrlhf/trainer/old.py": b"GONE = 2\n"}
    make_wheel(wheels, new, "1.10")
    make_wheel(wheels, new, "1.11")
    make_wheel(wheels, pristine_tree, "1.0")
    capsys.readouterr()
    assert world.call("drift", "--wheel", str(wheels), "--json") == 0
    said = capsys.readouterr()
    first, second, third = json.loads(said.out)["versions"]
    assert "OpenRLHF 1.10 (2 of 3)" in said.err
    names = ["first.patch", "second.patch", "third.patch"]
    assert (first["version"], first["fitting"], first["stops"], first["relies"]) == ("1.1", names, [], [])
    assert (second["version"], second["stops"]) == ("1.10", ["first.patch", "third.patch"])
    assert second["fitting"] == ["second.patch"] and second["relies"] == [
        "first (step)",
        "second (step)",
        "third (step)",
    ]
    assert third["stops"] == second["stops"] and third["relies"] == [], "1.10 told it"
    assert second["stack"] == {"torch": "==2.1.10"}
    assert world.call("drift", "--wheel", str(wheels)) == 0
    assert "1.10: 1 of 3 fit, 2 stop" in capsys.readouterr().out


def test_drift_tells_what_a_release_changed_in_the_methods_of_a_class(world, make_wheel, tmp_path, capsys):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    body = {"__init__": "self.a = 1", "fit": "return self.a", "old": "return 0", "kept": "return 3"}
    old = _loop("SIZE = 1", body)
    new = _loop("SIZE = 1", {"new": "return 4"} | body | {"fit": "return self.a + 1"}).replace(
        b"    def old", b"    def _old"
    )
    header = HEADER.format("x").replace("loop.py: step", "loop.py: Loop")
    write_series("1.0", [Change("own", header, {ACTOR: (PRISTINE[ACTOR], b"")})], PRISTINE | {LOOP: old})
    for version, text in {"1.0": old, "1.1": new, "1.2": new, "1.3": new.replace(b"SIZE = 1", b"SIZE = 2")}.items():
        make_wheel(wheels, PRISTINE | {LOOP: text}, version)
    capsys.readouterr()
    assert world.call("drift", "--wheel", str(wheels), "--json") == 0
    names = {each["version"]: dict(each["changes"]) for each in json.loads(capsys.readouterr().out)["versions"]}
    assert names["1.1"] == {
        f"{LOOP}: Loop.fit": "-        return self.a\n+        return self.a + 1",
        f"{LOOP}: Loop.new": "+    @other\n+    def new(self):\n+        return 4",
        f"{LOOP}: Loop._old": "+    @other\n+    def _old(self):\n+        return 0",
        f"{LOOP}: Loop.old": "it is gone",
    }
    assert names["1.2"] == {} and names["1.3"] == {f"{LOOP}: Loop": "-    SIZE = 1\n+    SIZE = 2"}
    assert world.call("drift", "--wheel", str(wheels), "--changes") == 0
    text = capsys.readouterr().out
    assert "own (Loop)" in text and "    -    SIZE = 1" in text


def _loop(first: str, methods: dict[str, str]) -> bytes:
    """The file of a class with decorated methods."""
    bodies = [f"    @other\n    def {name}(self):\n        {body}\n" for name, body in methods.items()]
    return "\n".join([f"class Loop:\n    {first}\n", *bodies]).encode()
