"""The transaction: build and compile the new files aside, then rename them in one by one.

Every rename is atomic and both hashes of every file are known. A call killed at any instant therefore leaves a mixture
of known files, which the next `apply` or `revert` completes.
"""

import contextlib
import errno
import fcntl
import functools
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from patches.errors import Exit, PatchError
from patches.manifest import sha256
from patches.series import Series, Tree
from patches.state import inspect, locate, next_command, read_installed
from patches.wheel import download, read_wheel


@dataclass(frozen=True)
class Step:
    """One file to replace, create (`old` is None) or delete (`new` is None)."""

    path: str
    old: bytes | None
    new: bytes | None


def build(target: Path, series: Series, *, revert: bool, wheel: Tree | None = None) -> list[Step]:
    """Return the steps that bring every file to its last state, or with `revert` to the pristine one.

    Unknown files are refused (EDITED), or taken pristine from `wheel`. The same holds for files of an earlier release
    of the patches, for which the wheel is downloaded if none is given. Every new text is checked against the manifest
    and compiled.
    """
    status = inspect(target, series.manifest)
    if status.state == "edited" and wheel is None:
        lines = [f"  {r.path}: found {r.found}, expected {r.expected} {r.note}".rstrip() for r in status.files
                 if r.state in ("edited", "missing")]  # fmt: skip
        raise PatchError(Exit.EDITED, "\n".join([status.message, *lines]), status.next)
    if wheel is None and any(record.is_earlier for record in status.files):
        wheel = _downloaded(series.manifest.version)
    steps = []
    for record in status.files:
        old = read_installed(target, record.path)
        text, start = (old, record.position) if sha256(old) == record.found else (None, None)
        if start is None:
            text, start = (wheel or {}).get(record.path), 0
            if sha256(text) != series.manifest.chain(record.path)[0]:
                message = f"{record.path}: the wheel's file is not the pristine one of {series.manifest.version}"
                raise PatchError(Exit.NO_WHEEL, message)
        new = series.move(record.path, text, start, 0 if revert else record.last)
        if new != old:
            compile_text(record.path, new)
            steps.append(Step(record.path, old, new))
    return steps


@functools.cache
def _downloaded(version: str) -> Tree:
    with tempfile.TemporaryDirectory(prefix="openrlhf-wheel-") as scratch:
        return read_wheel(download(version, Path(scratch)), version)[1]


def compile_text(path: str, text: bytes | None) -> None:
    """Raise NO_COMPILE if a Python file is not valid. Writes no .pyc."""
    if text is None or not path.endswith(".py"):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise PatchError(Exit.NO_COMPILE, f"{path} does not compile once patched: {error}") from error


def change(target: Path, series: Series, *, revert: bool, wheel: Tree | None, wait: float) -> list[Step]:
    """Apply the whole series, or revert it, all or nothing. Returns what changed.

    Waits up to `wait` seconds for another call on the same target (LOCKED).
    """
    # Without changes to make, neither lock nor write access is needed. A killed call leaves its lock file behind.
    is_clean = not _lock_path(target).exists() or not os.access(target.parent, os.W_OK)
    if is_clean and not build(target, series, revert=revert, wheel=wheel):
        return []
    try:
        with _locked(target, series.manifest.version, wait):
            for path in target.parent.glob(f".{target.name}-patch-*"):
                shutil.rmtree(path)  # we hold the lock, so its creator is gone
            steps = build(target, series, revert=revert, wheel=wheel)
            _check_writable(target, steps)
            _install(target, steps)
            _remove_empty_folders(target, series)
            return steps
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise _read_only(error.filename) from error
        advice = next_command(target, series.manifest.version, "status")
        raise PatchError(Exit.FAILED, str(error), advice) from error


def _lock_path(target: Path) -> Path:
    return target.parent / f".{target.name}-patch.lock"


@contextlib.contextmanager
def _locked(target: Path, version: str, wait: float) -> Iterator[None]:
    path, deadline = _lock_path(target), time.monotonic() + wait
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(lock, path):
                break
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(lock)
                message = f"another call has been patching {target} for {wait:g} s (it holds {path})"
                raise PatchError(Exit.LOCKED, message, next_command(target, version, "status")) from None
            time.sleep(0.05)
        os.close(lock)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(lock)


def _is_at(lock: int, path: Path) -> bool:
    # The previous holder unlinked the file: a lock on an unlinked file protects nothing.
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False


def _read_only(path: object) -> PatchError:
    return PatchError(
        Exit.READ_ONLY,
        f"cannot write to {path}: it is read-only for this user; nothing was changed",
        "install OpenRLHF into your own environment, then run ./apply_patches.sh",
    )


def _check_writable(target: Path, steps: list[Step]) -> None:
    for folder in sorted({locate(target, step.path).parent for step in steps}):
        while not folder.is_dir():
            folder = folder.parent
        if not os.access(folder, os.W_OK | os.X_OK):
            raise _read_only(folder)


def _install(target: Path, steps: list[Step]) -> None:
    if not steps:
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-patch-", dir=target.parent))
    done: list[Step] = []
    try:
        staged = [_stage(target, step, aside / str(number)) for number, step in enumerate(steps)]
        for step, new_file in zip(steps, staged, strict=True):
            if read_installed(target, step.path) != step.old:
                message = f"{step.path} changed while it was being patched; nothing was changed"
                raise PatchError(Exit.FAILED, message, f"./apply_patches.sh status --target {target}")
            done.append(step)
            _put(target, step, new_file)
    except BaseException:
        for step in reversed(done):
            if read_installed(target, step.path) == step.new:
                back = Step(step.path, step.new, step.old)
                _put(target, back, _stage(target, back, aside / "back"))
        raise
    finally:
        shutil.rmtree(aside)
    for folder in {locate(target, step.path).parent for step in steps}:
        if folder.is_dir():
            _sync(folder)


def _stage(target: Path, step: Step, aside: Path) -> Path | None:
    """Write the new text aside with the old file's mode and owner; a new file takes __init__.py's."""
    if step.new is None:
        return None
    file = locate(target, step.path)
    like = (file if step.old is not None else target / "__init__.py").lstat()
    aside.write_bytes(step.new)
    os.chmod(aside, like.st_mode & 0o7777)
    with contextlib.suppress(PermissionError):  # only root may give files away; group write is enough for us
        os.chown(aside, like.st_uid, like.st_gid)
    # Python validates a .pyc by its source's size and modification time in whole seconds. A time later than the old
    # file's, whatever the clock says, ensures that no .pyc of the old file ever matches.
    now = max(int(time.time()), int(like.st_mtime) + 1)
    os.utime(aside, (now, now))
    _sync(aside)
    return aside


def _put(target: Path, step: Step, new_file: Path | None) -> None:
    file = locate(target, step.path)
    _drop_bytecode(file)
    if new_file is None:
        file.unlink()
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        os.replace(new_file, file)  # a new inode: other hard links of the old file keep their bytes


def _drop_bytecode(source: Path) -> None:
    cache = source.parent / "__pycache__"
    if source.suffix == ".py" and cache.is_dir() and not cache.is_symlink():
        for path in list(cache.iterdir()):
            if path.name.startswith(f"{source.stem}.") and path.suffix == ".pyc":
                path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_empty_folders(target: Path, series: Series) -> None:
    """Remove the folders that held only files created by the patches."""
    for path in series.manifest.files:
        folder = locate(target, path).parent
        if series.manifest.chain(path)[0] is not None:
            continue
        while folder != target and folder.is_dir() and all(p.name == "__pycache__" for p in folder.iterdir()):
            shutil.rmtree(folder)
            folder = folder.parent
