"""For authors of patches: a git worktree in which every commit is one patch, and back.

The root commit is the pristine package (`openrlhf/` at the top). Each later commit is one patch: its subject is the
patch's name without `.patch`, its body is the patch's header.
"""

import os
import re
import subprocess
from pathlib import Path

from patches.errors import Exit, PatchError
from patches.manifest import PACKAGE, folder
from patches.series import Change, Series, Tree, write_folder

_IDENTITY = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    **{f"GIT_{who}_NAME": "patches" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "patches@localhost" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_DATE": "2000-01-01T00:00:00+0000" for who in ("AUTHOR", "COMMITTER")},
}
_SETTINGS = {"safe.directory": "*", "core.attributesFile": os.devnull}


def _git(worktree: Path, *arguments: str, data: bytes = b"") -> bytes:
    # git sets GIT_DIR and similar variables in hooks; they would point at another repository.
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | _IDENTITY
    settings = [word for key, value in _SETTINGS.items() for word in ("-c", f"{key}={value}")]
    command = ["git", "-C", str(worktree), *settings, *arguments]
    try:
        done = subprocess.run(command, input=data, capture_output=True, env=env)
    except FileNotFoundError as error:
        raise PatchError(Exit.BAD_WORKTREE, "git is needed to export and import patches", "install git") from error
    if done.returncode:
        message = f"git {arguments[0]} failed in {worktree}: {done.stderr.decode(errors='replace').strip()}"
        raise PatchError(Exit.BAD_WORKTREE, message)
    return done.stdout


def export(worktree: Path, version: str, out: Path | None = None) -> list[str]:
    """Write the commits of `worktree` as patches/openrlhf-<version>/. Returns the files that changed."""
    if _git(worktree, "status", "--porcelain", "--", ".", ":(exclude,glob)**/__pycache__/**").strip():
        remedy = f"git -C {worktree} commit (one patch is one commit), then export again"
        raise PatchError(Exit.BAD_WORKTREE, f"{worktree} has uncommitted changes", remedy)
    commits = _git(worktree, "rev-list", "--reverse", "--parents", "HEAD").decode().splitlines()
    ids = [line.split() for line in commits]
    if any(len(parents) > 1 for _, *parents in ids) or sum(not parents for _, *parents in ids) != 1:
        remedy = "rebase it onto its root commit"
        raise PatchError(Exit.BAD_WORKTREE, f"the history of {worktree} is not linear", remedy)
    changes = [_change(worktree, parents[0], commit) for commit, *parents in ids[1:]]
    names = [change.name for change in changes]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        remedy = f"squash them: git -C {worktree} rebase --interactive --root"
        raise PatchError(Exit.BAD_WORKTREE, f"several commits are named {', '.join(twice)}", remedy)
    target = out or folder(version)
    return write_folder(target, version, changes)


def _change(worktree: Path, parent: str, commit: str) -> Change:
    message = _git(worktree, "cat-file", "commit", commit).split(b"\n\n", 1)[1].decode()
    subject, _, header = message.strip().partition("\n")
    here = f"commit {commit[:12]} ({subject!r})"
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", subject):
        raise PatchError(Exit.BAD_WORKTREE, f"{here}: the subject must be a file stem like 'ppo_actor'")
    header = header.strip()
    if not header:
        what = "the body must say what, why, which upstream lines, how verified, when it can be deleted"
        raise PatchError(Exit.BAD_WORKTREE, f"{here}: {what}")
    if re.search(r"^--- (a/|/dev/null)", header, re.MULTILINE) or "\r" in header:
        raise PatchError(Exit.BAD_WORKTREE, f"{here}: the body contains lines of a diff or CRLF line ends")
    files: dict[str, tuple[bytes | None, bytes | None]] = {}
    raw = _git(worktree, "diff-tree", "-r", "-z", "--no-renames", parent, commit).decode().split("\0")
    for entry, path in zip(raw[0:-1:2], raw[1::2], strict=True):
        old_mode, new_mode, old_id, new_id, _ = entry[1:].split(" ")
        if not path.startswith(f"{PACKAGE}/"):
            raise PatchError(Exit.BAD_WORKTREE, f"{here} changes {path}, which is not below {PACKAGE}/")
        absent = "000000"
        if {old_mode, new_mode} - {"100644", absent}:
            raise PatchError(Exit.BAD_WORKTREE, f"{here}: {path} is not a regular file of mode 644")
        old = _git(worktree, "cat-file", "blob", old_id) if old_mode != absent else None
        new = _git(worktree, "cat-file", "blob", new_id) if new_mode != absent else None
        if b"\0" in (old or b"") + (new or b""):
            raise PatchError(Exit.BAD_WORKTREE, f"{here}: {path} has a NUL byte; only text can be patched")
        if new and b"\r" in new and b"\r" not in (old or b""):
            raise PatchError(Exit.BAD_WORKTREE, f"{here}: {path} gets CRLF line ends")
        files[path] = (old, new)
    if not files:
        raise PatchError(Exit.BAD_WORKTREE, f"{here} changes nothing")
    return Change(f"{subject}.patch", header, files)


def pristine_tree(target: Path, texts: dict[str, bytes | None]) -> Tree:
    """Return all files of an installed package, with `texts` (the pristine ones) in place of the touched ones."""
    tree: Tree = {}
    for entry in sorted(target.rglob("*")):
        if entry.is_file() and entry.suffix != ".pyc" and "__pycache__" not in entry.parts:
            tree[f"{PACKAGE}/{entry.relative_to(target).as_posix()}"] = entry.read_bytes()
    untouched = {path: text for path, text in tree.items() if path not in texts}
    return untouched | {path: text for path, text in texts.items() if text is not None}


def make_worktree(to: Path, version: str, pristine: Tree, series: Series | None) -> None:
    """Create the git worktree that `export` reads; `to` must be absent or empty."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise PatchError(Exit.BAD_WORKTREE, f"{to} exists and is not empty", "name a new folder")
    to.mkdir(parents=True, exist_ok=True)
    _git(to, "init", "--quiet", "--template=", "--initial-branch=patches")
    _commit(to, dict(pristine), f"{PACKAGE} {version}\n")
    tree: dict[str, bytes | None] = dict(pristine)
    for patch in series.patches if series else ():
        files = {diff.path: diff.apply(tree.get(diff.path), patch.name) for diff in patch.files}
        tree |= files
        _commit(to, files, f"{patch.name.removesuffix('.patch')}\n\n{patch.header}\n")


def _commit(to: Path, files: dict[str, bytes | None], message: str) -> None:
    for path, text in files.items():
        file = to / path
        if text is None:
            file.unlink()
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text)
    _git(to, "add", "--all", "--force")
    _git(to, "commit", "--quiet", "--cleanup=verbatim", "--file=-", data=message.encode())
