"""The files of a package and their digest, and git, untouched by the caller's configuration and repositories."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from patches.series import Exit, PatchError

_ISOLATED = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"} | {
    f"GIT_{who}_{what}": "patches" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
}


def read(package: str | os.PathLike[str]) -> dict[str, str]:
    """Return the files of a package by their paths in it, each as its sha256; Python's bytecode is left out.

    A symbolic link counts as its target's name: it never equals the file that it stands for.
    """
    found = {}
    for folder, folders, names in os.walk(package):
        folders[:] = (name for name in folders if name != "__pycache__")
        for file in (Path(folder, name) for name in (*names, *folders)):
            if file.is_symlink() or file.is_file():
                content = os.fsencode(os.readlink(file)) if file.is_symlink() else file.read_bytes()
                found[str(file.relative_to(package))] = f"{hashlib.sha256(content).hexdigest()} {file.is_symlink()}"
    return found


def digest(package: str | os.PathLike[str]) -> str:
    """Return one sha256 over the names and contents of all files of a package."""
    lines = sorted(f"{content} {name}" for name, content in read(package).items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def copy(package: Path, to: Path) -> Path:
    """Copy a package without bytecode to the folder `to`; return it."""
    return Path(shutil.copytree(package, to, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")))


def git(folder: Path, *words: str | Path, good: tuple[int, ...] = (0,)) -> str:
    """Return what git prints in a folder. Raises FAILED without git, or for an exit code that is not `good`."""
    # git sets GIT_DIR and similar variables in hooks. Without a ceiling it would find a repository above the folder.
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | _ISOLATED
    clean["GIT_CEILING_DIRECTORIES"] = str(folder.resolve().parent)
    try:
        done = subprocess.run(["git", *words], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, env=clean)
    except FileNotFoundError:
        raise PatchError(Exit.FAILED, "git is not installed", "apt install git") from None
    if done.returncode not in good:
        raise PatchError(Exit.FAILED, f"git {words[0]} failed in {folder}: {done.stderr.decode(errors='replace')}")
    return done.stdout.decode("utf-8", "surrogateescape")
