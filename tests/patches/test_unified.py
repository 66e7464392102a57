"""Diffs can be written, read, applied and reverted, byte for byte."""

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patches import unified
from patches.errors import Exit, PatchError

# Few different lines, so that equal ones are common; \r, blanks and diff-like lines are the traps.
LINE = st.sampled_from([b"", b"a", b"b", b" c", b"-- a/x", b"++ b/x", b"\\ No", b"@@ -1 +1 @@", b"x\r", b"\xff"])
TEXT = st.builds(
    lambda lines, ends: b"\n".join(lines) + (b"\n" if ends and lines else b""),
    st.lists(LINE, max_size=30),
    st.booleans(),
)
MAYBE = st.none() | TEXT


@given(MAYBE, MAYBE, st.integers(0, 4))
@settings(max_examples=400)
def test_apply_and_reverse_are_exact(old, new, context):
    if old == new:
        return
    diff = unified.make_diff("openrlhf/a.py", old, new, context)
    patch = unified.Patch("p.patch", "What: x.", (diff,))
    read = unified.parse("p.patch", patch.render())
    assert read == patch
    assert read.files[0].apply(old, "p.patch") == new
    assert read.files[0].reversed().apply(new, "p.patch") == old
    assert read.files[0].reversed().reversed() == diff


@given(st.lists(st.tuples(MAYBE, MAYBE).filter(lambda pair: pair[0] != pair[1]), min_size=1, max_size=4))
def test_several_files_in_one_patch(pairs):
    diffs = tuple(unified.make_diff(f"openrlhf/{i}.py", *pair) for i, pair in enumerate(pairs))
    patch = unified.Patch("p.patch", "What: x.\n\nWhy: --- a dash.", diffs)
    assert unified.parse("p.patch", patch.render()) == patch


@pytest.mark.skipif(not shutil.which("git"), reason="git is the reference here")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"a\nb\nc\nd\ne\nf\n", b"a\nB\nc\nd\ne\nf\ng\n"),
        (b"a\nb", b"a\nb\n"),
        (b"a\nb\n", b"a\nc"),
        (None, b"x\ny\n"),
        (b"x\n", None),
        (b"".join(b"%d\n" % i for i in range(99)), b"".join(b"%d\n" % i for i in range(99) if i % 10)),
    ],
)
def test_git_apply_reads_our_patches(tmp_path, old, new):
    file = tmp_path / "openrlhf" / "a.py"
    file.parent.mkdir()
    if old is not None:
        file.write_bytes(old)
    patch = unified.Patch("p.patch", "What: x.", (unified.make_diff("openrlhf/a.py", old, new),))
    (tmp_path / "p.patch").write_bytes(patch.render())
    subprocess.run(["git", "apply", "--unidiff-zero", "p.patch"], cwd=tmp_path, check=True)
    assert (file.read_bytes() if file.exists() else None) == new


def test_context_is_one_line():
    text = b"".join(b"%d\n" % i for i in range(20))
    diff = unified.make_diff("openrlhf/a.py", text, text.replace(b"10\n", b"ten\n"))
    assert diff.hunks[0].lines == ((b" ", b"9\n"), (b"-", b"10\n"), (b"+", b"ten\n"), (b" ", b"11\n"))


def test_a_blank_context_line_may_have_lost_its_space():
    patch = unified.parse("p", b"x\n\n--- a/openrlhf/a.py\n+++ b/openrlhf/a.py\n@@ -1,2 +1,2 @@\n\n-a\n+b\n")
    assert patch.files[0].apply(b"\na\n", "p") == b"\nb\n"


def test_a_mismatch_names_hunk_expected_and_found_lines():
    diff = unified.make_diff("openrlhf/a.py", b"1\n2\n3\n4\n5\n6\n7\n8\n", b"1\nX\n3\n4\n5\n6\nY\n8\n")
    with pytest.raises(PatchError) as caught:
        diff.apply(b"1\n2\n3\n4\n5\nsix\n7\n8\n", "p.patch")
    message = str(caught.value)
    assert caught.value.code == Exit.BAD_SERIES
    assert "p.patch does not apply: openrlhf/a.py hunk 2 at line 6" in message
    expected, present = message.split("found:")
    assert "'6'" in expected and "'six'" not in expected and "'six'" in present


@pytest.mark.parametrize("shift", [b"0\n", b"0\n0\n"])
def test_there_is_no_fuzz(shift):
    diff = unified.make_diff("openrlhf/a.py", b"1\n2\n3\n", b"1\nX\n3\n")
    with pytest.raises(PatchError, match="hunk 1"):
        diff.apply(shift + b"1\n2\n3\n", "p")


HEAD = b"What: x.\n\n--- a/openrlhf/a.py\n+++ b/openrlhf/a.py\n"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"What: nothing.\n", "changes nothing"),
        (HEAD, "expected a hunk"),
        (HEAD + b"@@ -1 +1 @@\n-a\n", "1 more new lines"),
        (HEAD + b"@@ -1,2 +1,2 @@\n-a\n+b\n*c\n", "line 8: expected a line that starts with"),
        (HEAD + b"@@ -1 +1 @@\n-a\n-b\n+c\n", "more lines than"),
        (HEAD + b"@@ one @@\n", "expected '@@"),
        (HEAD + b"@@ -1 +1 @@\n-a\n+b\nrubbish\n", "expected '--- a/FILE'"),
        (HEAD.replace(b"/openrlhf/", b"/other/") + b"@@ -1 +1 @@\n-a\n+b\n", "below openrlhf/"),
        (HEAD.replace(b"openrlhf/", b"openrlhf/../../") + b"@@ -1 +1 @@\n-a\n+b\n", "below openrlhf/"),
        (HEAD.replace(b"b/openrlhf/a.py", b"b/openrlhf/b.py") + b"@@ -1 +1 @@\n-a\n+b\n", "same file"),
        (HEAD + b"@@ -1 +1 @@\n-a\n+b\0\n", "NUL"),
        ((HEAD + b"@@ -1 +1 @@\n-a\n+b\n").replace(b"\n", b"\r\n"), "CRLF"),
        (HEAD + b"@@ -1 +1 @@\n-a\n+b\n" + HEAD.partition(b"\n\n")[2] + b"@@ -1 +1 @@\n-b\n+c\n", "once"),
    ],
)
def test_a_malformed_patch_is_refused(data, message):
    with pytest.raises(PatchError, match=message) as caught:
        unified.parse("bad.patch", data)
    assert caught.value.code == Exit.BAD_SERIES
    assert str(caught.value).startswith("bad.patch")


def test_a_wrong_new_line_number_is_refused():
    patch = unified.parse("p", HEAD + b"@@ -2 +3 @@\n-b\n+c\n")
    with pytest.raises(PatchError, match="starts at line 2, not at 3"):
        patch.files[0].apply(b"a\nb\n", "p")
