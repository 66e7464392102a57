"""Runs git, untouched by the caller's configuration and environment."""

import os
import subprocess
import tempfile
from pathlib import Path

from patches.errors import AGAIN, Exit, PatchError

AUTHOR, DATE = "gptoss-grpo <patches@localhost>", "Sat, 1 Jan 2000 00:00:00 +0000"
_NAME, _EMAIL = AUTHOR.removesuffix(">").split(" <")
_ISOLATED = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": "true",
    "LC_ALL": "C",
    **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER")
       for what, value in (("NAME", _NAME), ("EMAIL", _EMAIL), ("DATE", DATE))},
}  # fmt: skip
_SETTINGS = {
    "safe.directory": "*",
    "core.attributesFile": os.devnull,
    "core.hooksPath": os.devnull,
    "core.autocrlf": "false",
    "merge.conflictStyle": "diff3",  # the report needs the common ancestor
    "advice.mergeConflict": "false",
}


def git(folder: Path, *words: str, fails: bool = False, env: dict[str, str] | None = None) -> bytes:
    """Return git's standard output. If it fails: raises BAD_WORKTREE, or with `fails` returns b""."""
    done = attempt(folder, *words, env=env)
    if done.returncode and not fails:
        what = done.stderr.decode(errors="replace").strip()
        raise PatchError(Exit.BAD_WORKTREE, f"git {words[0]} failed in {folder}: {what}")
    return b"" if done.returncode else done.stdout


def lines(folder: Path, *words: str) -> list[str]:
    """Return the lines of git's standard output."""
    return git(folder, *words).decode(errors="replace").splitlines()


def attempt(folder: Path, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder. Raises NO_GIT if there is no git."""
    # git sets GIT_DIR and similar variables in hooks; they would point at another repository.
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | _ISOLATED
    settings = [word for key, value in _SETTINGS.items() for word in ("-c", f"{key}={value}")]
    try:
        command = ["git", "-C", str(folder), *settings, *words]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=clean | (env or {}))
    except FileNotFoundError as error:
        message = f"git is not installed, and `git {words[0]}` is needed here"
        raise PatchError(Exit.NO_GIT, message, f"apt install git && {AGAIN}") from error


def apply(texts: dict[str, bytes | None], patches: list[Path], *words: str) -> tuple[dict[str, bytes | None], str]:
    """Return the texts after `git apply` of the patches, in a folder of their own, and git's complaint or ""."""
    with tempfile.TemporaryDirectory(prefix="openrlhf-apply-") as name:
        folder = Path(name).resolve()
        write(folder, texts)
        # Without a ceiling git would take a repository above the temporary folder for the one to patch.
        ceiling = {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
        done = attempt(folder, "apply", "--whitespace=nowarn", *words, *map(str, patches), env=ceiling)
        files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".rej")
        after = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
        return dict.fromkeys(texts) | after, done.stderr.decode(errors="replace").strip() if done.returncode else ""


def diff(old: dict[str, bytes | None], new: dict[str, bytes | None]) -> bytes:
    """Return the difference of two sets of texts as a patch; None is an absent file."""
    with tempfile.TemporaryDirectory(prefix="openrlhf-diff-") as name:
        for side, texts in (("a", old), ("b", new)):
            (Path(name) / side).mkdir()
            write(Path(name) / side, texts)
        words = ("diff", "--no-index", "--no-prefix", "--no-renames", "a", "b")
        return attempt(Path(name), *words, env={"GIT_CEILING_DIRECTORIES": name}).stdout


def write(folder: Path, texts: dict[str, bytes | None]) -> None:
    """Write texts below a folder; None deletes a file."""
    for path, text in texts.items():
        file = folder / path
        if text is None:
            file.unlink(missing_ok=True)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text)
