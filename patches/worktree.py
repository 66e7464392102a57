"""A git repository in which every commit is one patch: made from a series, and written as one.

The root commit is the pristine package (`openrlhf/` at the top). Each later commit is one patch: its subject is the
patch's name without `.patch`, its body is the patch's header.
"""

import os
import re
import shlex
from pathlib import Path

from patches import git
from patches.errors import AGAIN, Exit, PatchError
from patches.series import PACKAGE, Series, folder, known_versions, read_order, sha256
from patches.wheel import Tree

FIELDS = ("Description", "Origin", "Forwarded", "Relies-On", "Verified-By")  # the header of a patch has at least these


def make(to: Path, version: str, pristine: Tree, series: Series | None) -> None:
    """Create the repository; `to` must be absent or empty. Patches need not have the manifest's hashes."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise PatchError(Exit.BAD_WORKTREE, f"{to} exists and is not empty; remove it, or name another folder")
    to.mkdir(parents=True, exist_ok=True)
    git.git(to, "init", "--quiet", "--template=", "--initial-branch=patches")
    for key, value in (("user.name", "patches"), ("user.email", "patches@localhost"), ("rerere.enabled", "true")):
        git.git(to, "config", key, value)
    commit_tree(to, pristine, f"{PACKAGE} {version}")
    if series and series.patches:
        git.git(to, "am", "--quiet", "--keep-cr", "--whitespace=nowarn", "--", *map(str, series.files()))


def commit_tree(to: Path, tree: Tree, message: str) -> None:
    """Commit exactly these files."""
    git.git(to, "rm", "-r", "-q", "--cached", "--ignore-unmatch", ".")
    git.write(to, dict.fromkeys(git.git(to, "ls-files", "--others").decode().splitlines()) | tree)
    git.git(to, "add", "--all", "--force")
    git.git(to, "commit", "--quiet", "--allow-empty", "-m", message)


def files_at(worktree: Path, commit: str) -> dict[str, str]:
    """Return the sha256 of every file of the package in a commit."""
    names = git.git(worktree, "ls-tree", "-r", "--name-only", commit, "--", PACKAGE).decode().splitlines()
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
    lines = git.git(worktree, "rev-list", "--reverse", "--parents", f"{root}..HEAD").decode().splitlines()
    commits = [line.split() for line in lines]
    if any(len(words) != 2 for words in commits):
        message = f"the history of {worktree} is not linear"
        raise PatchError(Exit.BAD_WORKTREE, message, f"{here} rebase --root && {AGAIN}")
    contents: dict[str, bytes] = {}
    patches: dict[str, str] = {}
    for commit, _ in commits:
        name, text = _patch(worktree, commit)
        if name in patches:
            message = f"several commits are named {name}; squash them"
            raise PatchError(Exit.BAD_WORKTREE, message, f"{here} rebase --interactive --root && {AGAIN}")
        of_base = folder(base) / name
        if base != version and of_base.is_file() and _does_the_same(worktree, commit, of_base):
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
    stale = [path.name for path in sorted(out.glob("*.patch")) if path.name not in contents]
    for name in stale:
        (out / name).unlink()
    changed = [name for name, data in contents.items()
               if not (out / name).is_file() or (out / name).read_bytes() != data]  # fmt: skip
    for name in changed:
        aside = out / f".{name}.new"
        aside.write_bytes(contents[name])
        os.replace(aside, out / name)
    return stale + changed


def _series_text(path: Path, names: list[str]) -> bytes:
    if path.is_file() and read_order(path) == names:
        return path.read_bytes()
    old = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    comments = [line for line in old if line.startswith("#")] or ["# The order in which the patches apply, one a line."]
    return "".join(f"{line}\n" for line in (*comments, *names)).encode()


def _does_the_same(worktree: Path, commit: str, patch: Path) -> bool:
    """Return whether a patch file turns the commit's parent into the commit."""
    index = {"GIT_INDEX_FILE": str((worktree / ".git" / "index-of-export").resolve())}
    git.git(worktree, "read-tree", f"{commit}^", env=index)
    if git.attempt(worktree, "apply", "--cached", "--whitespace=nowarn", str(patch), env=index).returncode:
        return False
    return git.git(worktree, "write-tree", env=index) == git.git(worktree, "rev-parse", f"{commit}^{{tree}}")


def _patch(worktree: Path, commit: str) -> tuple[str, bytes]:
    """Return name and text of the patch of a commit: mail headers, its message and its difference."""
    subject, _, header = git.git(worktree, "log", "-1", "--format=%B", commit).decode().strip().partition("\n")
    here = f"commit {commit[:12]} ({subject!r})"
    header = re.sub(r"\n{3,}", "\n\n", header.strip())  # as `git am` does
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", subject):
        raise PatchError(Exit.BAD_WORKTREE, f"{here}: the subject must be a file stem like 'ppo_actor'")
    if missing := [field for field in FIELDS if not re.search(rf"^{field}: *\S", header, re.MULTILINE)]:
        raise PatchError(Exit.BAD_WORKTREE, f"{here}: the body must be a header with {', '.join(missing)}")
    if re.search(r"^(--- (a/|/dev/null)|diff -|---$)", header, re.MULTILINE) or "\r" in header:
        raise PatchError(Exit.BAD_WORKTREE, f"{here}: the body contains lines of a diff or CRLF line ends")
    raw = git.git(worktree, "diff-tree", "-r", "-z", "--no-renames", f"{commit}^", commit).decode().split("\0")
    for entry, path in zip(raw[0:-1:2], raw[1::2], strict=True):
        if not path.startswith(f"{PACKAGE}/"):
            raise PatchError(Exit.BAD_WORKTREE, f"{here} changes {path}, which is not below {PACKAGE}/")
        if set(entry[1:].split(" ")[:2]) - {"100644", "000000"}:
            raise PatchError(Exit.BAD_WORKTREE, f"{here}: {path} is not a regular file of mode 644")
        old, new = text_at(worktree, f"{commit}^", path), text_at(worktree, commit, path)
        if b"\0" in old + new or (b"\r" in new and b"\r" not in old):
            raise PatchError(
                Exit.BAD_WORKTREE, f"{here}: {path} gets NUL bytes or CRLF line ends; only text can be patched"
            )
    if len(raw) == 1:
        raise PatchError(Exit.BAD_WORKTREE, f"{here} changes nothing")
    # One line of context: the least upstream text that still shows where a hunk belongs.
    diff = git.git(worktree, "diff-tree", "-p", "-U1", "--no-renames", "--full-index", f"{commit}^", commit)
    diff = diff.partition(b"\n")[2] if not diff.startswith(b"diff ") else diff
    return f"{subject}.patch", _mail(subject, header) + _plain(diff)


def _mail(subject: str, header: str) -> bytes:
    return f"From: {git.AUTHOR}\nDate: {git.DATE}\nSubject: {subject}\n\n{header}\n\n".encode()


def _plain(diff: bytes) -> bytes:
    """Leave out what changes with unrelated edits: ids, and the functions named after a hunk's position."""
    diff = re.sub(rb"^(@@ [^@]* @@).*", rb"\1", diff, flags=re.MULTILINE)
    parts = [part for part in re.split(rb"^(?=diff --git )", diff, flags=re.MULTILINE) if part]
    if not all(b"\n--- " in part for part in parts):
        return diff  # an empty file comes or goes; only git's own lines say so
    return b"".join(b"--- " + part.partition(b"\n--- ")[2] for part in parts)


def only_version() -> str:
    known = [version for version in known_versions() if Series.load(version).base == version]
    if len(known) != 1:
        what = f"there are base series for {', '.join(known) or 'no version'}"
        raise PatchError(Exit.USAGE, f"which version? {what}", f"{AGAIN} --version {known[0]}" if known else "")
    return known[0]
