"""The upgrade to another OpenRLHF: the series as commits, rebased by git from one version's commit to the next's.

Where git stops, the user edits and continues. git keeps the resolutions, and follows files that moved.
"""

import json
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
from patches.wheel import Wheel

REASONS = ".git/reasons.json"  # why patches are retired, as given so far
WIDTH = 58  # of each of the two columns of a report
CONFLICT = re.compile(r"^<{7} .*?\n(.*?)^\|{7} .*?\n(.*?)^={7}\n(.*?)^>{7} .*?$", re.DOTALL | re.MULTILINE)
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


def check(to: str, since: str, work: Path) -> None:
    """Refuse a refresh that cannot start, before anything is downloaded."""
    if not re.fullmatch(r"\d+(\.\d+)*((a|b|rc|\.post|\.dev)\d+)*", to):
        raise PatchError(Exit.USAGE, f"--to {to} is not a version of OpenRLHF; give one such as 1.2.3")
    if to == since:
        advice = "./apply_patches.sh refresh --to VERSION"
        raise PatchError(Exit.USAGE, f"the refresh starts from {since}, which already has the series", advice)
    if is_refresh(work):
        message = f"{work} holds a refresh already; go on with it, or remove the folder to start again"
        raise PatchError(Exit.BAD_WORKTREE, message, build_continue_command(work))


def is_refresh(work: Path) -> bool:
    """Return whether a folder is the repository of a refresh."""
    return (work / ".git").is_dir() and bool(
        git.git(work, "rev-parse", "--verify", "-q", "refs/tags/series", fails=True)
    )


def build_continue_command(work: Path) -> str:
    return f"./apply_patches.sh refresh --continue --work {shlex.quote(str(work))}"


def start(work: Path, series: Series, old: Wheel, new: Wheel) -> Outcome:
    """Make the repository with both versions and the series, and rebase until git stops or is through."""
    set_up(work, series, old, new)
    (work / ".git" / "compiles.py").write_text(COMPILES)
    check = f"{shlex.quote(sys.executable)} .git/compiles.py"
    words = ("--onto", "upstream", "old", "patches", "--empty=drop", "--reschedule-failed-exec", "--exec", check)
    _rebase(work, *words)
    return _report(work, {})


def set_up(work: Path, series: Series, old: Wheel, new: Wheel) -> None:
    """Make the repository: `old` has the series on top, and `upstream` is the new version, a child of `old`."""
    worktree.make(work, series.version, old.tree, series, old.metadata)
    git.git(work, "tag", "old", "HEAD" + f"~{len(series.patches)}")
    git.git(work, "tag", "series")
    git.git(work, "checkout", "--quiet", "-b", "upstream", "old")
    worktree.commit_tree(work, new.tree, new.version, new.metadata)
    git.git(work, "checkout", "--quiet", "patches")


def continue_refresh(work: Path, retired: dict[str, str]) -> Outcome:
    """Take the user's edits, and rebase on; at the end write the new series. `retired` has reasons by patch."""
    if not is_refresh(work):
        advice = "./apply_patches.sh refresh --to VERSION"
        raise PatchError(Exit.BAD_WORKTREE, f"{work} is not the folder of a refresh", advice)
    retired = {f"{name.removesuffix('.patch')}.patch": reason for name, reason in retired.items()}
    known = Series.load(_wheel(work, "old").version).patches
    for name, reason in retired.items():
        if name not in known or not reason.strip():
            what = f"{name} needs a reason" if name in known else f"there is no patch {name} in the series"
            raise PatchError(Exit.USAGE, what)
    retired = _read_reasons(work) | retired
    (work / REASONS).write_text(json.dumps(retired), encoding="utf-8")
    if _is_stopped(work):
        marks = git.attempt(work, "diff", "--check", "HEAD").stdout.decode(errors="replace")
        if left := sorted(set(re.findall(r"^(.*):\d+: leftover conflict marker", marks, re.MULTILINE))):
            return Outcome(False, f"there are conflict marks left in {', '.join(left)}\n{_advice(work)}")
        git.git(work, "add", "--all")
        is_conflict = (work / ".git" / "REBASE_HEAD").is_file()  # otherwise it stopped at a commit that is no Python
        if not is_conflict and git.attempt(work, "commit", "--quiet", "--amend", "--no-edit").returncode:
            git.git(work, "reset", "--quiet", "HEAD^")  # nothing is left of it
        _rebase(work, "--continue")
    return _report(work, retired)


def _read_reasons(work: Path) -> dict[str, str]:
    """Return the reasons that earlier calls gave."""
    return json.loads((work / REASONS).read_text(encoding="utf-8")) if (work / REASONS).is_file() else {}


def _rebase(work: Path, *words: str) -> None:
    done = git.attempt(work, "rebase", *words)
    if done.returncode and not _is_stopped(work):
        raise PatchError(Exit.BAD_WORKTREE, f"git rebase failed in {work}: {done.stderr.decode(errors='replace')}")


def _is_stopped(work: Path) -> bool:
    return (work / ".git" / "rebase-merge").is_dir()


def _advice(work: Path) -> str:
    return f"next: edit in {work}, then {build_continue_command(work)}"


def _report(work: Path, retired: dict[str, str]) -> Outcome:
    if _is_stopped(work):
        return Outcome(False, f"{_stop(work)}\n{_advice(work)}")
    version, to = (_wheel(work, commit).version for commit in ("old", "upstream"))
    series = Series.load(version)
    names = [f"{name}.patch" for name in git.lines(work, "log", "--format=%s", "upstream..patches")]
    if kept := [name for name in retired if name in names]:
        (work / REASONS).unlink(missing_ok=True)  # the user may decide otherwise
        raise PatchError(Exit.USAGE, f"{', '.join(kept)} still changes the package; take its commit out in {work}")
    retired = {name: reason for name, reason in (series.retired | retired).items() if name not in names}
    if gone := [name for name in series.patches if name not in names and name not in retired]:
        text = f"nothing is left of {', '.join(gone)}: upstream has these changes, or you took them out. Say why.\n"
        words = ["--work", str(work), *(word for name in gone for word in ("--retire", name, "REASON"))]
        return Outcome(False, f"{text}next: ./apply_patches.sh refresh --continue {shlex.join(words)}")
    worktree.export(work, to, series.base, retired, "upstream", folder(to))
    return Outcome(True, _ending(work, series, Series.load_checked(to)))


def _wheel(work: Path, commit: str) -> Wheel:
    """Return one of the two versions, as committed."""
    subject, _, metadata = git.git(work, "log", "-1", "--format=%B", commit).decode().partition("\n")
    tree = {name: worktree.text_at(work, commit, name) for name in worktree.files_at(work, commit)}
    return Wheel(subject.removeprefix(f"{PACKAGE} "), tree, metadata)


def _stop(work: Path) -> str:
    """Describe where the rebase stopped: per conflict, upstream's change and ours side by side."""
    done = len((work / ".git/rebase-merge/done").read_text().split("\npick"))
    total = len(git.lines(work, "rev-list", "old..series"))
    unmerged = git.lines(work, "diff", "--name-only", "--diff-filter=U")
    [subject] = git.lines(work, "log", "-1", "--format=%s", "REBASE_HEAD" if unmerged else "HEAD")
    where = f"stopped at {subject}.patch ({done} of {total})"
    if not unmerged:
        return f"{where}: merged, it is not valid Python"
    lines = [where]
    renames = git.lines(work, "diff", "--name-status", "-M40", "--diff-filter=R", "old", "upstream")
    moved = {new: old for _, old, new in (line.split("\t") for line in renames)}
    for name in unmerged:
        text = (work / name).read_text(encoding="utf-8", errors="replace") if (work / name).is_file() else ""
        lines += ["", name + (f" (moved from {moved[name]})" if name in moved else "")]
        for match in CONFLICT.finditer(text):
            theirs, base, ours = (match[number].splitlines() for number in (1, 2, 3))
            lines.append(f"  line {text[: match.start()].count(chr(10)) + 1}")
            lines += _columns(_change(base, theirs), _change(base, ours))
        if not CONFLICT.search(text):
            diff = git.lines(work, "show", "--format=", "-U1", "REBASE_HEAD", "--", name)
            ours = [f"  {line}" for line in diff if line[:1] in "+-" and line[:3] not in ("+++", "---")]
            lines += ["  upstream deleted or replaced this file; ours:", *ours]
    return "\n".join(lines)


def _change(base: list[str], side: list[str]) -> list[str]:
    return [line for line in ndiff(base, side) if line[0] in "+- "]


def _columns(left: list[str], right: list[str]) -> list[str]:
    wrapper = textwrap.TextWrapper(WIDTH, subsequent_indent="    ", drop_whitespace=False, replace_whitespace=False)
    sides = (
        [head, *(part for line in lines for part in wrapper.wrap(line) or [""])]
        for head, lines in (("UPSTREAM", left), ("OURS", right))
    )
    return [f"  {one:{WIDTH}} | {other}".rstrip() for one, other in zip_longest(*sides, fillvalue="")]


def _ending(work: Path, series: Series, fresh: Series) -> str:
    """List what remains: what upstream changed around the hooks, pins and lock entries, and tests."""
    old, new = _wheel(work, "old"), _wheel(work, "upstream")
    own = [file for file in fresh.files() if file.parent != folder(fresh.base)]
    count = f"{len(fresh.patches)} patches, {len(fresh.retired)} retired; {len(own)} differ from {fresh.base}'s"
    lines = [f"{old.version} -> {new.version}: {count}", f"written: {folder(new.version)}"]
    relying: dict[tuple[str, str], list[str]] = {}
    for patch in series.files():
        for change in anchors.changes(patch, old.tree, new.tree):
            relying.setdefault(change, []).append(patch.stem)
    for (anchor, difference), names in relying.items():
        lines += ["", f"upstream changed {anchor}, which these patches rely on: {', '.join(names)}"]
        lines.append(textwrap.indent(difference, "  "))
    lines += ["", "pins and lock entries to change (docs/versions.md says how):", *_pins(old, new)]
    tests = sorted({test for patch in fresh.files() for test in re.findall(r"tests/\w[\w/.]*\.py", patch.read_text())})
    lines += ["", "tests to run:", f"  pytest {' '.join(tests)} tests/patches tests/grpo/hooks"]
    return "\n".join(lines)


def _pins(old: Wheel, new: Wheel) -> list[str]:
    """Return the lines of our requirements that pin OpenRLHF, or what the new version wants otherwise."""
    before, root, lines = old.requires(), folder(new.version).parents[1], []
    wanted = {
        name: f"upstream: {before.get(name, 'nothing')} -> {after}"
        for name, after in new.requires().items()
        if after != before.get(name)
    } | {PACKAGE: f"{PACKAGE} {new.version}"}
    for file in (root / "pyproject.toml", *sorted((root / "requirements").glob("*.txt"))):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines() if file.is_file() else [], 1):
            match = re.match(r'\s*"?([\w.-]+?)(?:-cpu)?(?:\[.*\])?\s*(?:==|@|>)', line)
            if match and match[1].lower() in wanted:
                pin = line.partition(" --hash=")[0].strip().rstrip(",")
                lines.append(f"  {file.relative_to(root)}:{number}: {pin}  ({wanted[match[1].lower()]})")
    return lines
