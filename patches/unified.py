"""Unified diffs of bytes: parse, apply at the exact lines, reverse, write.

There is no fuzz and no offset search. The hashes in the manifest pin the input, so a hunk either matches at its stated
line or the patch is wrong.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import SequenceMatcher

from patches.errors import Exit, PatchError

CONTEXT = 1  # lines around a change: the least upstream text that still shows where a hunk belongs
NO_NEWLINE = b"\\ No newline at end of file\n"
_RANGE = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def split_lines(text: bytes) -> list[bytes]:
    """Return the lines with their newline. Only `\\n` ends a line, and the last one may have none."""
    return re.findall(rb"[^\n]*\n|[^\n]+", text)


@dataclass(frozen=True)
class Hunk:
    """Lines from `old_start` on (1-based; the line before, if there are no old lines) become the new lines."""

    old_start: int
    new_start: int
    lines: tuple[tuple[bytes, bytes], ...]  # (b" ", b"-" or b"+", text with its newline, if it has one)

    def side(self, sign: bytes) -> list[bytes]:
        """Return the old lines (`b"-"`) or the new lines (`b"+"`), context included."""
        return [text for mark, text in self.lines if mark in (b" ", sign)]

    def reversed(self) -> "Hunk":
        swap = {b" ": b" ", b"-": b"+", b"+": b"-"}
        return Hunk(self.new_start, self.old_start, tuple((swap[mark], text) for mark, text in self.lines))


@dataclass(frozen=True)
class FileDiff:
    """The change of one file; `creates` and `deletes` mean that it is absent before or after."""

    path: str
    hunks: tuple[Hunk, ...]
    creates: bool = False
    deletes: bool = False

    def reversed(self) -> "FileDiff":
        hunks = tuple(hunk.reversed() for hunk in self.hunks)
        return FileDiff(self.path, hunks, creates=self.deletes, deletes=self.creates)

    def apply(self, text: bytes | None, patch: str) -> bytes | None:
        """Return the text after the change; None means an absent file. `patch` names it in errors."""
        if self.creates != (text is None):
            existence = "does not exist" if text is None else "exists already"
            raise PatchError(Exit.BAD_SERIES, f"{patch} does not apply: {self.path} {existence}")
        lines = split_lines(text or b"")
        out: list[bytes] = []
        position = 0
        for number, hunk in enumerate(self.hunks, 1):
            old, new = hunk.side(b"-"), hunk.side(b"+")
            start = hunk.old_start - bool(old)
            found_lines = lines[start : start + len(old)]
            if found_lines != old or not position <= start <= len(lines):
                raise _mismatch(patch, self.path, number, hunk.old_start, old, found_lines)
            out += lines[position:start]
            if len(out) != hunk.new_start - bool(new):
                message = (
                    f"{patch}: {self.path} hunk {number}: the new side starts at line "
                    f"{len(out) + bool(new)}, not at {hunk.new_start} as the patch says"
                )
                raise PatchError(Exit.BAD_SERIES, message)
            out += new
            position = start + len(old)
        result = b"".join(out + lines[position:])
        if self.deletes and result:
            raise PatchError(Exit.BAD_SERIES, f"{patch} deletes {self.path} but leaves {len(result)} bytes of it")
        return None if self.deletes else result


@dataclass(frozen=True)
class Patch:
    """One patch file: its name, its free-text header, and the files it changes."""

    name: str
    header: str
    files: tuple[FileDiff, ...]

    def render(self) -> bytes:
        """Return the bytes of the patch file; `parse(name, patch.render()) == patch`."""
        return self.header.encode() + b"\n\n" + b"".join(render_diff(diff) for diff in self.files)


def _mismatch(patch: str, path: str, number: int, line: int, old: list[bytes], present: list[bytes]) -> PatchError:
    def block(lines: list[bytes]) -> str:
        return "".join(f"    {text.decode(errors='replace').rstrip()!r}\n" for text in lines) or "    (end of file)\n"

    message = f"{patch} does not apply: {path} hunk {number} at line {line}\n  expected:\n{block(old)}  found:\n"
    return PatchError(Exit.BAD_SERIES, message + block(present).rstrip("\n"))


def parse(name: str, data: bytes) -> Patch:
    """Read a patch file: a header, then `--- a/...`, `+++ b/...` and hunks for every file."""
    lines = split_lines(data)

    def fail(index: int, what: str) -> PatchError:
        shown = repr(lines[index].decode(errors="replace").rstrip("\n")) if index < len(lines) else "the end"
        return PatchError(Exit.BAD_SERIES, f"{name} line {index + 1}: {what}, found {shown}")

    if b"\0" in data:
        raise PatchError(Exit.BAD_SERIES, f"{name} has a NUL byte; only text can be patched")
    at = next((i for i in range(len(lines)) if _starts_file(lines, i)), len(lines))
    if at == len(lines):
        raise PatchError(Exit.BAD_SERIES, f"{name} changes nothing: no line starts with '--- a/'")
    if lines[at].endswith(b"\r\n"):
        remedy = "git config core.autocrlf false && git checkout -- patches"
        raise PatchError(Exit.BAD_SERIES, f"{name} has CRLF line ends; check it out again with LF", remedy)
    try:
        header = b"".join(lines[:at]).decode().strip()
    except UnicodeDecodeError as error:
        raise PatchError(Exit.BAD_SERIES, f"{name}: the header is not UTF-8: {error}") from error
    files: list[FileDiff] = []
    while at < len(lines):
        if not _starts_file(lines, at):
            raise fail(at, "expected '--- a/FILE' and '+++ b/FILE'")
        old, new = _file_name(lines[at][4:]), _file_name(lines[at + 1][4:])
        if (old is None and new is None) or (old and new and old != new):
            raise fail(at, "expected the same file on both sides (a rename is a deletion and a creation)")
        path = old or new or ""
        if not path.startswith("openrlhf/") or ".." in path.split("/") or "\\" in path or "//" in path:
            raise fail(at, "expected a path below openrlhf/")
        if any(diff.path == path for diff in files):
            raise fail(at, "expected each file once in a patch")
        hunks, at = _parse_hunks(lines, at + 2, fail)
        if not hunks and old and new:
            raise fail(at, f"expected a hunk for {path}")
        files.append(FileDiff(path, tuple(hunks), creates=old is None, deletes=new is None))
    return Patch(name, header, tuple(files))


def _starts_file(lines: list[bytes], at: int) -> bool:
    is_old = lines[at].startswith((b"--- a/", b"--- /dev/null"))
    return is_old and at + 1 < len(lines) and lines[at + 1].startswith((b"+++ b/", b"+++ /dev/null"))


def _file_name(text: bytes) -> str | None:
    name = text.rstrip(b"\n").split(b"\t")[0].decode(errors="replace")
    return None if name == "/dev/null" else name[2:]


def _parse_hunks(lines: list[bytes], at: int, fail: Callable[[int, str], PatchError]) -> tuple[list[Hunk], int]:
    hunks: list[Hunk] = []
    while at < len(lines) and lines[at].startswith(b"@@"):
        match = _RANGE.match(lines[at])
        if not match:
            raise fail(at, "expected '@@ -LINE,COUNT +LINE,COUNT @@'")
        old_left, new_left = (int(match[i] or 1) if match[i] is not None else 1 for i in (2, 4))
        body: list[tuple[bytes, bytes]] = []
        at += 1
        while old_left or new_left or (at < len(lines) and lines[at].startswith(b"\\")):
            if at == len(lines):
                raise fail(at, f"expected {old_left} more old and {new_left} more new lines")
            # Editors often strip the single space of a blank context line.
            mark, text = (b" ", b"\n") if lines[at] == b"\n" else (lines[at][:1], lines[at][1:])
            if mark == b"\\" and body:
                body[-1] = (body[-1][0], body[-1][1].removesuffix(b"\n"))
            elif mark in (b" ", b"-", b"+"):
                body.append((mark, text))
                old_left -= mark != b"+"
                new_left -= mark != b"-"
            else:
                raise fail(at, "expected a line that starts with ' ', '-' or '+'")
            if old_left < 0 or new_left < 0:
                raise fail(at, "more lines than the hunk's '@@' line says")
            at += 1
        hunks.append(Hunk(int(match[1]), int(match[3]), tuple(body)))
    return hunks, at


def make_diff(path: str, old: bytes | None, new: bytes | None, context: int = CONTEXT) -> FileDiff:
    """Return the difference of two texts (None: absent), the same on every machine."""
    before, after = split_lines(old or b""), split_lines(new or b"")
    hunks = []
    # autojunk drops frequent lines, which gives needlessly large hunks in long files.
    for group in SequenceMatcher(None, before, after, autojunk=False).get_grouped_opcodes(context):
        body: list[tuple[bytes, bytes]] = []
        for tag, i, i_end, j, j_end in group:
            if tag == "equal":
                body += [(b" ", text) for text in before[i:i_end]]
            else:
                body += [(b"-", text) for text in before[i:i_end]]
                body += [(b"+", text) for text in after[j:j_end]]
        old_count, new_count = group[-1][2] - group[0][1], group[-1][4] - group[0][3]
        hunks.append(Hunk(group[0][1] + bool(old_count), group[0][3] + bool(new_count), tuple(body)))
    return FileDiff(path, tuple(hunks), creates=old is None, deletes=new is None)


def render_diff(diff: FileDiff) -> bytes:
    """Return the bytes of one file's part of a patch, without dates or index lines."""
    out = [
        b"--- /dev/null\n" if diff.creates else f"--- a/{diff.path}\n".encode(),
        b"+++ /dev/null\n" if diff.deletes else f"+++ b/{diff.path}\n".encode(),
    ]
    for hunk in diff.hunks:
        old, new = len(hunk.side(b"-")), len(hunk.side(b"+"))
        out.append(f"@@ -{hunk.old_start},{old} +{hunk.new_start},{new} @@\n".encode())
        for mark, text in hunk.lines:
            out.append(mark + text if text.endswith(b"\n") else mark + text + b"\n" + NO_NEWLINE)
    return b"".join(out)
