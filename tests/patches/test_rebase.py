"""refresh: the three-way rebase onto another version."""

import json
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patches import manifest, rebase
from patches.__main__ import main
from patches.errors import Exit
from patches.series import Change, Series, write_folder

PATH = "openrlhf/trainer/loop.py"

LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d\n"]), max_size=12)


def merged(pieces) -> list[bytes] | None:
    if any(piece.clean is None for piece in pieces):
        return None
    return [line for piece in pieces for line in piece.clean]


@given(LINES, LINES, LINES)
@settings(max_examples=300)
def test_pieces_partition_all_three_sides(base, ours, theirs):
    pieces = rebase.merge3(base, ours, theirs)
    for side, whole in (("base", base), ("ours", ours), ("theirs", theirs)):
        assert [line for piece in pieces for line in getattr(piece, side)] == whole


@given(LINES, LINES)
def test_unchanged_side_yields_to_the_changed_side(base, other):
    assert merged(rebase.merge3(base, other, base)) == other
    assert merged(rebase.merge3(base, base, other)) == other
    assert merged(rebase.merge3(base, other, other)) == other


EDITS = st.dictionaries(st.integers(0, 19), st.sampled_from([[], [b"new 1\n"], [b"new 2\n", b"new 3\n"]]), max_size=6)


@given(EDITS, EDITS)
@settings(max_examples=300)
def test_edits_apart_from_each_other_all_survive(ours, theirs):
    """Edits of lines at least two apart merge to the text with both; the reference is construction."""
    theirs = {at: new for at, new in theirs.items() if all(abs(at - other) > 1 for other in ours)}
    base = [b"%d\n" % i for i in range(20)]

    def edit(edits):
        return [line for i, old in enumerate(base) for line in edits.get(i, [old])]

    assert merged(rebase.merge3(base, edit(ours), edit(theirs))) == edit(ours | theirs)


@pytest.mark.skipif(not shutil.which("git"), reason="git merge-file is the reference here")
@given(st.permutations(range(12)), EDITS, EDITS)
@settings(max_examples=25, deadline=None)
def test_conflicts_are_where_git_sees_them(tmp_path_factory, order, ours, theirs):
    base = [b"%d\n" % i for i in order]

    def edit(edits, mark):
        return [mark + line if line.startswith(b"new") else line
                for i, old in enumerate(base) for line in edits.get(i, [old])]  # fmt: skip

    sides = [edit(ours, b"o "), base, edit(theirs, b"t ")]
    folder = tmp_path_factory.mktemp("merge")
    for name, lines in zip("obt", sides, strict=True):
        (folder / name).write_bytes(b"".join(lines))
    done = subprocess.run(["git", "merge-file", "-p", "o", "b", "t"], cwd=folder, capture_output=True)
    mine = merged(rebase.merge3(base, sides[0], sides[2]))
    if done.returncode == 0:
        assert mine is not None and b"".join(mine) == done.stdout
    else:
        assert mine is None


@pytest.fixture
def refresh(world, make_wheel, tmp_path, capsys):
    """Runs `refresh --to 1.1` with a wheel of the tree; returns exit code, JSON and the folder."""

    def run(tree, *words: str):
        out = tmp_path / "out"
        wheel = str(make_wheel(tmp_path, tree, "1.1"))
        capsys.readouterr()
        code = world.call("refresh", "--to", "1.1", "--wheel", wheel, "--out", str(out), "--json", *words)
        return code, json.loads(capsys.readouterr().out), out

    return run


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_a_clean_refresh_applies_to_the_new_version(
    world, before, after, look, refresh, package, tmp_path, monkeypatch, command
):
    world.call(command)
    installed, folder = look(world.site), look(world.checkout / "patches")
    new = dict(before)
    new["openrlhf/models/actor.py"] = before["openrlhf/models/actor.py"].replace(b"LINE_10 = 10\n", b"# new\n" * 5)
    new["openrlhf/models/actor.py"] = b"# a new first line\n" + new["openrlhf/models/actor.py"]
    code, report, out = refresh(new)
    assert code == 0 and report["fitting"] == ["first.patch", "second.patch", "third.patch"]
    assert look(world.site) == installed and look(world.checkout / "patches") == folder

    shutil.copytree(out, world.checkout / "patches" / "openrlhf-1.1")
    pristine = {path: text for path, text in new.items() if path.startswith("openrlhf/")}
    target = package(tmp_path / "newer", pristine, "1.1")
    assert main(["apply", "--target", str(target)]) == main(["verify", "--target", str(target)]) == 0
    text = (target / "models" / "actor.py").read_bytes()
    assert text == new["openrlhf/models/actor.py"].replace(b"LINE_3 = 3\n", b"LINE_3 = 103\nMORE = 1\n").replace(
        b"LINE_20 = 20\n", b"LINE_20 = 20\nEXTRA = 1\n"
    )
    assert Series.load("1.1").patches[1].header == Series.load("1.0").patches[1].header


def test_a_conflict_is_reported_with_all_sides(world, before, refresh):
    new = dict(before)
    actor = before["openrlhf/models/actor.py"]
    new["openrlhf/models/actor.py"] = actor.replace(b"LINE_3 = 3\n", b"LINE_3 = 7\n")
    code, report, out = refresh(new)
    assert code == Exit.CONFLICTS
    assert report["conflicts"] == ["first.patch"] and report["fitting"] == ["second.patch", "third.patch"]
    text = (out / "REPORT.md").read_text()
    for side in (
        "LINE_3 = 3\n",
        "LINE_3 = 103\n",
        "LINE_3 = 7\n",
        "LINE_1 = 1\nLINE_2 = 2\nLINE_3 = 7\nLINE_4",
        "line 1",
        "first.patch: openrlhf/models/actor.py",
    ):
        assert side in text
    # The rest of the patch is not lost.
    assert "openrlhf/hooks/new.py" in (out / "partial" / "first.patch").read_text()
    assert sorted(path.name for path in out.glob("*.patch")) == ["second.patch", "third.patch"]


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("openrlhf/trainer/old.py", b"GONE = 2\n", "the patch deletes this file"),
        ("openrlhf/hooks/new.py", b"NEW = 2\n", "has this file already"),
        ("openrlhf/trainer/loop.py", None, "no such file; same name: openrlhf/moved/loop.py"),
    ],
)
def test_conflicts_of_whole_files(before, refresh, path, text, reason):
    new = {name: body for name, body in before.items() if name != path}
    new |= {path: text} if text is not None else {"openrlhf/moved/loop.py": before[path]}
    code, report, out = refresh(new)
    assert code == Exit.CONFLICTS and len(report["conflicts"]) == report["hunks"] == 1
    assert reason in (out / "REPORT.md").read_text()


def test_a_patch_that_upstream_took_is_dropped(before, after, refresh):
    new = before | {"openrlhf/trainer/loop.py": after["openrlhf/trainer/loop.py"]}
    new |= {"openrlhf/models/actor.py": after["openrlhf/models/actor.py"].replace(b" = 103\nMORE = 1\n", b" = 3\n")}
    code, report, _ = refresh(new)
    assert code == 0 and report["upstream"] == ["second.patch"]
    assert report["fitting"] == ["first.patch", "third.patch"]


def test_merge_with_invalid_syntax_is_a_conflict(world, before, refresh):
    """Lines that merge into invalid code: an `await` in a function that is no longer a coroutine."""
    loop = b"async def step():\n    a = 1\n    b = 2\n    return a + b\n"
    write_folder(
        world.checkout / "patches" / "openrlhf-1.0",
        "1.0",
        [Change("wait.patch", "What: x.", {PATH: (loop, loop.replace(b"2\n", b"2\n    await hook()\n"))})],
    )
    (world.site / PATH).write_bytes(loop)
    code, report, out = refresh(before | {PATH: loop.replace(b"async def", b"def")})
    assert code == Exit.CONFLICTS and report["fitting"] == []
    assert "does not compile" in (text := (out / "REPORT.md").read_text()) and "await hook()" in text


def test_the_old_wheel_can_stand_in_for_the_install(world, before, refresh, make_wheel, tmp_path):
    (world.target / "models" / "actor.py").write_bytes(b"mine = 1\n")
    assert refresh(before)[0] == Exit.EDITED
    old = make_wheel(tmp_path, before, "1.0")
    assert refresh(before, "--from-wheel", str(old))[0] == 0


def test_refresh_writes_only_into_a_new_folder(world, before, refresh, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    assert refresh(before)[0] == Exit.USAGE
    assert refresh(before, "--out", str(world.checkout / "patches" / "openrlhf-1.1"))[0] == Exit.USAGE


def test_unavailable_wheel_is_a_clear_error(world, tmp_path, before, make_wheel, monkeypatch, capsys):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    out = str(tmp_path / "out")
    assert world.call("refresh", "--to", "9.9.9", "--out", out) == Exit.NO_WHEEL
    error = capsys.readouterr().err
    assert "could not download openrlhf 9.9.9" in error and "next:" in error
    (tmp_path / "bad.whl").write_bytes(b"no zip")
    for wheel in (tmp_path / "bad.whl", tmp_path / "none.whl", make_wheel(tmp_path, {}, "9.9.9")):
        assert world.call("refresh", "--to", "9.9.9", "--wheel", str(wheel), "--out", out) == Exit.NO_WHEEL
    assert manifest.known_versions() == ["1.0"]
