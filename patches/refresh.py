"""The upgrade to another OpenRLHF: the series as commits, rebased by git from one version's commit to the next's.

Where git stops, the user edits and continues. git keeps the resolutions, and follows files that moved.
"""

import re
import shlex
import sys
import textwrap
from dataclasses import dataclass
from difflib import ndiff
from itertools import zip_longest
from pathlib import Path

from patches import anchors, git, worktree
from patches.errors import Exit, PatchError
from patches.series import PACKAGE, Series, folder
from patches.wheel import Tree, Wheel

WIDTH = 58  # of each of the two columns of a report
# Runs after each commit: merged text can be invalid Python.
COMPILES = """
import subprocess
command = ["git", "diff-tree", "-r", "--name-only", "--diff-filter=d", "--no-commit-id", "HEAD", "--", "*.py"]
for name in subprocess.check_output(command, text=True).split():
    compile(open(name).read(), name, "exec", dont_inherit=True)
"""


@dataclass(frozen=True)
class Outcome:
    """How far a refresh came: `done`, or the text says where it waits."""

    done: bool
    text: str
    changed: tuple[str, ...] = ()


def start(work: Path, series: Series, old: Wheel, new: Wheel) -> Outcome:
    """Make the repository with both versions and the series, and rebase until git stops or is through."""
    set_up(work, series, old.tree, new)
    for key, value in (("base", series.base), ("from", series.version), ("to", new.version)):
        git.git(work, "config", f"refresh.{key}", value)
    for name, wanted in new.requires.items():
        if wanted != old.requires.get(name):
            git.git(
                work, "config", f"refresh.requires.{name}", f"{old.requires.get(name, 'nothing')} -> {wanted or 'any'}"
            )
    (work / ".git" / "compiles.py").write_text(COMPILES)
    check = f"{shlex.quote(sys.executable)} .git/compiles.py"
    words = ("--onto", "upstream", "old", "patches", "--empty=drop", "--reschedule-failed-exec", "--exec", check)
    _rebase(work, *words)
    return _report(work, {})


def set_up(work: Path, series: Series, old: Tree, new: Wheel) -> None:
    """Make the repository: `old` has the series on top, and `upstream` is the new version, a child of `old`."""
    worktree.make(work, series.version, old, series)
    git.git(work, "tag", "old", "HEAD" + f"~{len(series.patches)}")
    git.git(work, "tag", "series")
    git.git(work, "checkout", "--quiet", "-b", "upstream", "old")
    worktree.commit_tree(work, new.tree, f"{PACKAGE} {new.version}")
    git.git(work, "checkout", "--quiet", "patches")


def go_on(work: Path, retired: dict[str, str]) -> Outcome:
    """Take the user's edits, and rebase on; at the end write the new series. `retired` has reasons by patch."""
    if not git.git(work, "config", "refresh.to", fails=True):
        raise PatchError(
            Exit.BAD_WORKTREE, f"{work} is not the folder of a refresh", "./apply_patches.sh refresh --to V"
        )
    if _is_stopped(work):
        changed = git.git(work, "diff", "--name-only", "HEAD").decode().split()
        left = [
            name for name in changed if (work / name).is_file() and b"\n<<<<<<< " in b"\n" + (work / name).read_bytes()
        ]
        if left:
            return Outcome(False, f"there are conflict marks left in {', '.join(left)}\n{_advice(work)}")
        git.git(work, "add", "--all")
        if changed and not (work / ".git" / "REBASE_HEAD").is_file():  # it stopped at a commit that does not compile
            git.git(work, "commit", "--quiet", "--amend", "--no-edit")
        _rebase(work, "--continue")
    return _report(work, retired)


def _rebase(work: Path, *words: str) -> None:
    done = git.attempt(work, "rebase", *words)
    if done.returncode and not _is_stopped(work):
        raise PatchError(Exit.BAD_WORKTREE, f"git rebase failed in {work}: {done.stderr.decode(errors='replace')}")


def _is_stopped(work: Path) -> bool:
    return (work / ".git" / "rebase-merge").is_dir()


def _advice(work: Path) -> str:
    return f"next: edit in {work}, then ./apply_patches.sh refresh --continue --work {shlex.quote(str(work))}"


def _report(work: Path, retired: dict[str, str]) -> Outcome:
    if _is_stopped(work):
        return Outcome(False, f"{_stop(work)}\n{_advice(work)}")
    settings = {key: git.git(work, "config", f"refresh.{key}").decode().strip() for key in ("base", "from", "to")}
    series = Series.load(settings["from"])
    names = [f"{name}.patch" for name in git.git(work, "log", "--format=%s", "upstream..patches").decode().split()]
    retired = {name: reason for name, reason in (series.retired | retired).items() if name not in names}
    gone = [name for name in series.patches if name not in names and name not in retired]
    if gone:
        words = " ".join(f"--retire {name} REASON" for name in gone)
        text = f"nothing is left of {', '.join(gone)}: upstream has these changes, or you took them out. Say why.\n"
        return Outcome(
            False, f"{text}next: ./apply_patches.sh refresh --continue --work {shlex.quote(str(work))} {words}"
        )
    to, base = settings["to"], settings["base"]
    changed = worktree.export(work, to, base, retired, "upstream", folder(to))
    return Outcome(True, _ending(work, series, to, changed), tuple(changed))


def _stop(work: Path) -> str:
    """Describe where the rebase stopped: per conflict, upstream's change and ours side by side."""
    done = len((work / ".git/rebase-merge/done").read_text().split("\npick")) if _is_stopped(work) else 0
    total = len(git.git(work, "rev-list", "old..series").split())
    unmerged = git.git(work, "diff", "--name-only", "--diff-filter=U").decode().split()
    if not unmerged:
        subject = git.git(work, "log", "-1", "--format=%s").decode().strip()
        return f"stopped at {subject}.patch ({done} of {total}): merged, it is not valid Python"
    subject = git.git(work, "log", "-1", "--format=%s", "REBASE_HEAD").decode().strip()
    lines = [f"stopped at {subject}.patch ({done} of {total})"]
    for name in unmerged:
        file = work / name
        text = file.read_bytes().decode(errors="replace") if file.is_file() else ""
        moved = _moved(work, name)
        lines += ["", name + (f" (moved from {moved})" if moved else "")]
        marks = re.compile(r"^<{7} .*?\n(.*?)^\|{7} .*?\n(.*?)^={7}\n(.*?)^>{7} .*?$", re.DOTALL | re.MULTILINE)
        conflicts = list(marks.finditer(text))
        for match in conflicts:
            theirs, base, ours = (match[number].splitlines() for number in (1, 2, 3))
            lines += [
                f"  line {text[: match.start()].count(chr(10)) + 1}",
                *_columns(_change(base, theirs), _change(base, ours)),
            ]
        if not conflicts:
            lines += ["  upstream deleted or replaced this file; ours:", *_ours(work, name)]
    return "\n".join(lines)


def _moved(work: Path, name: str) -> str:
    """Return the old place of a file that upstream moved."""
    listed = git.git(work, "diff", "--name-status", "-M40", "--diff-filter=R", "old", "upstream").decode().splitlines()
    return next((line.split("\t")[1] for line in listed if line.split("\t")[2] == name), "")


def _ours(work: Path, name: str) -> list[str]:
    diff = git.git(work, "show", "--format=", "-U1", "REBASE_HEAD", "--", name).decode(errors="replace")
    return [f"  {line}" for line in diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def _change(base: list[str], side: list[str]) -> list[str]:
    return [line for line in ndiff(base, side) if line[0] in "+- "]


def _columns(left: list[str], right: list[str]) -> list[str]:
    def folded(lines: list[str]) -> list[str]:
        wrap = textwrap.TextWrapper(
            WIDTH, subsequent_indent="    ", drop_whitespace=False, replace_whitespace=False
        ).wrap
        return [part for line in lines for part in wrap(line) or [""]]

    rows = zip_longest(["UPSTREAM", *folded(left)], ["OURS", *folded(right)], fillvalue="")
    return [f"  {one:{WIDTH}} | {other}".rstrip() for one, other in rows]


def _tree(work: Path, commit: str) -> Tree:
    return {name: worktree.text_at(work, commit, name) for name in worktree.files_at(work, commit)}


def _ending(work: Path, series: Series, to: str, changed: list[str]) -> str:
    """List what remains: what upstream changed around the hooks, pins and lock entries, and tests."""
    old, new = _tree(work, "old"), _tree(work, "upstream")
    fresh = Series.load_checked(to)
    own = [name for name in changed if name.endswith(".patch")]
    count = f"{len(fresh.patches)} patches, {len(fresh.retired)} retired"
    lines = [f"{series.version} -> {to}: {count}; {len(own)} differ from {fresh.base}'s", f"written: {folder(to)}"]
    relying: dict[tuple[str, str], list[str]] = {}
    for patch in series.files():
        for change in anchors.changes(patch, old, new):
            relying.setdefault(change, []).append(patch.stem)
    for (anchor, difference), names in relying.items():
        lines += [
            "",
            f"upstream changed {anchor}, on which {', '.join(names)} rely:",
            textwrap.indent(difference, "  "),
        ]
    lines += ["", "pins and lock entries to change:", *(_pins(work, to) or ["  none"])]
    tests = sorted({test for patch in fresh.files() for test in re.findall(r"tests/\w[\w/.]*\.py", patch.read_text())})
    lines += ["", "tests to run:", f"  pytest {' '.join(tests)} tests/patches tests/grpo/hooks"]
    return "\n".join(lines)


def _pins(work: Path, to: str) -> list[str]:
    """Return the lines of our requirements that pin OpenRLHF, or what the new version wants otherwise."""
    wanted = {PACKAGE: f"{PACKAGE} {to}"}
    for line in git.git(work, "config", "--get-regexp", r"^refresh\.requires\.", fails=True).decode().splitlines():
        key, _, change = line.partition(" ")
        wanted[key.removeprefix("refresh.requires.")] = f"upstream: {change}"
    lines, root = [], folder(to).parents[1]
    for file in (root / "pyproject.toml", *sorted((root / "requirements").glob("*.txt"))):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines() if file.is_file() else [], 1):
            match = re.match(r'\s*"?([\w.-]+?)(?:-cpu)?(?:\[.*\])?\s*(?:==|@|>)', line)
            if match and match[1].lower() in wanted:
                here = file.relative_to(root)
                lines.append(f"  {here}:{number}: {line.strip().rstrip(',')}  ({wanted[match[1].lower()]})")
    return lines
