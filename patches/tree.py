"""The files of a package: their digest, and git on them, untouched by the caller's configuration and repositories."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from patches.series import Exit, PatchError

AUTHOR, EMAIL, DATE = "gptoss-grpo", "patches@localhost", "Sat, 1 Jan 2000 00:00:00 +0000"
_BYTECODE = shutil.ignore_patterns("__pycache__")
_ISOLATED = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_EDITOR": "true",
    "LC_ALL": "C",
    **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER")
       for what, value in (("NAME", AUTHOR), ("EMAIL", EMAIL), ("DATE", DATE))},
}  # fmt: skip
_SETTINGS = ("core.autocrlf=false", f"core.hooksPath={os.devnull}", "safe.directory=*")


def digest(package: str | os.PathLike[str]) -> str:
    """Return one sha256 over the names and contents of all files of a package; Python's bytecode is left out.

    A symbolic link counts as its target's name: it never equals the file that it stands for.
    """
    lines = []
    for folder, folders, names in os.walk(package):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for file in (Path(folder, name) for name in (*names, *folders)):
            if file.is_symlink() or file.is_file():
                text = os.fsencode(os.readlink(file)) if file.is_symlink() else file.read_bytes()
                lines.append(f"{hashlib.sha256(text).hexdigest()} {file.is_symlink()} {file.relative_to(package)}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def copy(package: Path, to: Path) -> None:
    """Copy a package without bytecode. Installers link files to their cache, so a copy is safe to edit."""
    shutil.copytree(package, to, symlinks=True, ignore=_BYTECODE)


def git(folder: Path, *words: str | Path, check: bool = True, remedy: str = "") -> bytes:
    """Return the standard output of git in a folder.

    Raises:
        PatchError: FAILED if there is no git, or with `remedy` if git fails and `check` is set.
    """
    # git sets GIT_DIR and similar variables in hooks. Without a ceiling it would find a repository above the folder.
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | _ISOLATED
    clean["GIT_CEILING_DIRECTORIES"] = str(folder.resolve().parent)
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    command = ["git", "-C", str(folder), *settings, *map(str, words)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=clean)
    except FileNotFoundError:
        raise PatchError(Exit.FAILED, "git is not installed", "apt install git") from None
    if check and done.returncode:
        error = done.stderr.decode(errors="replace").strip()
        raise PatchError(Exit.FAILED, f"git {words[0]} failed in {folder}: {error}", remedy)
    return done.stdout


def apply(patches: Iterable[Path], package: Path) -> None:
    """Apply patches, in their order, to the package; all or an error."""
    remedy = "git checkout patches, or export your commits again"
    git(package.parent, "apply", "--whitespace=nowarn", *patches, remedy=remedy)


def diff(old: Path, new: Path) -> bytes:
    """Return the difference of two packages as a patch for the folder above the package."""
    with tempfile.TemporaryDirectory(prefix="openrlhf-diff-") as scratch:
        for side, package in (("a", old), ("b", new)):
            copy(package, Path(scratch, side, package.name))
        return git(Path(scratch), "diff", "--no-index", "--no-prefix", "--no-renames", "a", "b", check=False)
