"""A git repository in which every commit is one patch: made from a series, and written as one.

The root commit is the pristine package (`openrlhf/` at the top). Each later commit is one patch: its subject is the
patch's name without `.patch`, its body is the patch's header.
"""

import re
import shlex
from pathlib import Path

from patches import git
from patches.errors import AGAIN, Exit, PatchError
from patches.series import PACKAGE, Series, folder, read_order, sha256
from patches.wheel import Tree

FIELDS = ("Description", "Origin", "Forwarded", "Relies-On", "Verified-By")  # the header of a patch has at least these


def make(to: Path, version: str, pristine: Tree, series: Series | None, metadata: str = "") -> None:
    """Create the repository; `to` must be absent or empty. Patches need not have the manifest's hashes."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise PatchError(Exit.BAD_WORKTREE, f"{to} exists and is not empty; remove it, or name another folder")
    to.mkdir(parents=True, exist_ok=True)
    git.git(to, "init", "--quiet", "--template=", "--initial-branch=patches")
    for key, value in (("user.name", "patches"), ("user.email", "patches@localhost"), ("rerere.enabled", "true")):
        git.git(to, "config", key, value)
    commit_tree(to, pristine, version, metadata)
    if series and series.patches:
        git.git(to, "am", "--quiet", "--keep-cr", "--whitespace=nowarn", "--", *map(str, series.files()))


def commit_tree(to: Path, tree: Tree, version: str, metadata: str) -> None:
    """Commit exactly these files, with a wheel's metadata as the message's body."""
    git.git(to, "rm", "-r", "-q", "--cached", "--ignore-unmatch", ".")
    git.write(to, dict.fromkeys(git.lines(to, "ls-files", "--others")) | tree)
    git.git(to, "add", "--all", "--force")
    message = ("-m", f"{PACKAGE} {version}", "-m", metadata)
    git.git(to, "commit", "--quiet", "--allow-empty", "--cleanup=whitespace", *message)


def files_at(worktree: Path, commit: str) -> dict[str, str]:
    """Return the sha256 of every file of the package in a commit."""
    names = git.lines(worktree, "ls-tree", "-r", "--name-only", commit, "--", PACKAGE)
    return {name: str(sha256(text_at(worktree, commit, name))) for name in names}


def text_at(worktree: Path, commit: str, path: str) -> bytes:
    return git.git(worktree, "cat-file", "blob", f"{commit}:{path}", fails=True)


def export(worktree: Path, version: str, base: str, retired: dict[str, str], root: str, out: Path) -> list[str]:
    """Write the commits after `root` as the folder of a version. Returns the names of the files that changed.

    A version with a base gets only the patches that differ: those for which the base's file does not do the same.
    """
    here = f"git -C {shlex.quote(str(worktree))}"
    if git.git(worktree, "status", "--porcelain", "--", ".", ":(exclude,glob)**/__pycache__/**").strip():
        message = f"{worktree} has uncommitted changes; one patch is one commit"
        raise PatchError(Exit.BAD_WORKTREE, message, f"{here} commit --all && {AGAIN}")
    if git.git(worktree, "rev-list", "--merges", f"{root}..HEAD"):
        message = f"the history of {worktree} is not linear"
        raise PatchError(Exit.BAD_WORKTREE, message, f"{here} rebase --root && {AGAIN}")
    contents: dict[str, bytes] = {}
    patches: dict[str, str] = {}
    for commit in git.lines(worktree, "rev-list", "--reverse", f"{root}..HEAD"):
        name, text = _patch(worktree, commit)
        if name in patches:
            message = f"several commits are named {name}; squash them"
            raise PatchError(Exit.BAD_WORKTREE, message, f"{here} rebase --interactive --root && {AGAIN}")
        of_base = folder(base) / name
        if base != version and of_base.is_file() and _is_same_change(worktree, commit, of_base):
            text = of_base.read_bytes()
        else:
            contents[name] = text
        patches[name] = str(sha256(text))
    before, after = files_at(worktree, root), files_at(worktree, "HEAD")
    patched = {path: after.get(path) for path in sorted(before | after) if before.get(path) != after.get(path)}
    contents["manifest.json"] = Series(version, base, patches, retired, before, patched).render()
    if base == version:
        contents["series"] = _series_text(out / "series", list(patches))
    return _write_changed(out, contents)


def _write_changed(out: Path, contents: dict[str, bytes]) -> list[str]:
    out.mkdir(parents=True, exist_ok=True)
    now = {path.name: path.read_bytes() for path in out.iterdir() if path.suffix == ".patch" or path.name in contents}
    changed = {name: contents.get(name) for name in sorted(now | contents) if now.get(name) != contents.get(name)}
    git.write(out, changed)
    return list(changed)


def _series_text(path: Path, names: list[str]) -> bytes:
    if path.is_file() and read_order(path) == names:
        return path.read_bytes()
    old = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    comments = [line for line in old if line.startswith("#")] or ["# The order in which the patches apply, one a line."]
    return "".join(f"{line}\n" for line in (*comments, *names)).encode()


def _is_same_change(worktree: Path, commit: str, patch: Path) -> bool:
    """Return whether a patch file turns the commit's parent into the commit."""
    index = {"GIT_INDEX_FILE": str((worktree / ".git" / "index-of-export").resolve())}
    git.git(worktree, "read-tree", f"{commit}^", env=index)
    if git.attempt(worktree, "apply", "--cached", "--whitespace=nowarn", str(patch), env=index).returncode:
        return False
    return git.git(worktree, "write-tree", env=index) == git.git(worktree, "rev-parse", f"{commit}^{{tree}}")


def _patch(worktree: Path, commit: str) -> tuple[str, bytes]:
    """Return name and text of the patch of a commit: mail headers, its message and its difference."""
    subject, _, header = git.git(worktree, "log", "-1", "--format=%B", commit).decode().strip().partition("\n")
    header = re.sub(r"\n{3,}", "\n\n", header.strip())  # as `git am` does
    # One line of context: the least upstream text that still shows where a hunk belongs.
    diff = git.git(worktree, "diff-tree", "-p", "-U1", "--no-commit-id", "--no-renames", "--full-index", commit)
    paths = git.lines(worktree, "diff-tree", "-r", "--name-only", "--no-commit-id", "--no-renames", commit)
    outside = [path for path in paths if not path.startswith(f"{PACKAGE}/")]
    missing = [field for field in FIELDS if not re.search(rf"^{field}: *\S", header, re.MULTILINE)]
    has_diff = re.search(r"^(--- (a/|/dev/null)|diff -|---$)|\r", header, re.MULTILINE)
    other_mode = re.search(rb"^(new|old|new file) mode (?!100644)", diff, re.MULTILINE)
    is_binary = re.search(rb"^Binary files |^\+.*\r$", diff, re.MULTILINE)
    problems = (
        (not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", subject), "the subject must be a file stem like 'ppo_actor'"),
        (missing, f"the body must be a header with {', '.join(missing)}"),
        (has_diff, "the body has lines of a diff, or CRLF line ends"),
        (outside, f"it changes {', '.join(outside)}, which is not below {PACKAGE}/"),
        (other_mode, "a file is not a regular one of mode 644"),
        (is_binary, "NUL bytes or CRLF line ends; only text can be patched"),
        (not diff, "it changes nothing"),
    )  # fmt: skip
    for is_wrong, message in problems:
        if is_wrong:
            raise PatchError(Exit.BAD_WORKTREE, f"commit {commit[:12]} ({subject!r}): {message}")
    mail = f"From: {git.AUTHOR}\nDate: {git.DATE}\nSubject: {subject}\n\n{header}\n\n"
    return f"{subject}.patch", mail.encode() + _strip_diff(diff)


def _strip_diff(diff: bytes) -> bytes:
    """Leave out what changes with unrelated edits: ids, and the functions named after a hunk's position."""
    diff = re.sub(rb"^(@@ [^@]* @@).*", rb"\1", diff, flags=re.MULTILINE)
    parts = [part for part in re.split(rb"^(?=diff --git )", diff, flags=re.MULTILINE) if part]
    if not all(b"\n--- " in part for part in parts):
        return diff  # an empty file comes or goes; only git's own lines say so
    return b"".join(b"--- " + part.partition(b"\n--- ")[2] for part in parts)
