"""The transaction: build and compile the new files aside, then rename them in one by one.

Every rename is atomic, and every text that leaves or arrives is kept beside the package first. A call killed at any
instant therefore leaves a mixture of known files, which the next `apply` or `revert` completes.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from patches import git, originals
from patches.errors import AGAIN, Exit, PatchError
from patches.package import inspect, locate, next_command, read_file, read_installed, scan
from patches.series import Series, sha256
from patches.texts import Texts, hand_edits, patched_texts, pristine_texts
from patches.wheel import Tree


@dataclass(frozen=True)
class Step:
    """One file to replace, create (`old` is None) or delete (`new` is None)."""

    file: Path
    old: bytes | None
    new: bytes | None


def build(target: Path, series: Series, *, revert: bool, wheel: Tree | None, edits_to: Path | None) -> list[Step]:
    """Return the steps that bring every file of the package, and RECORD, to the patched or the pristine state.

    Hand edits are refused (EDITED), unless `edits_to` says where they are saved.
    """
    status = inspect(target, series)
    if status.state == "edited" and edits_to is None:
        lines = [f"  {each.path}: {each.state}" for each in status.files if each.is_edited]
        raise PatchError(Exit.EDITED, "\n".join([status.message, *lines]), status.next)
    wanted = series.pristine if revert else series.list_expected()
    changing = [each.path for each in status.files if each.installed != wanted.get(each.path)]
    texts = pristine_texts(target, series, changing, wheel)
    if changing and not revert:
        texts |= patched_texts(target, series, wheel)
    steps = [Step(locate(target, path), read_installed(target, path), texts[path]) for path in changing]
    record, own = originals.record(target, series.version), originals.folder(target) / "RECORD"
    listed = originals.read_record(record)
    if listed not in (None, wanted):
        now = dict.fromkeys(listed) | {path: read_installed(target, path) for path in wanted} | texts
        is_kept = originals.read_record(own) == wanted
        old = record.read_bytes()
        steps.append(Step(record, old, own.read_bytes() if is_kept else originals.rewrite_record(old, now)))
    return steps


def change(
    target: Path, series: Series, *, revert: bool, wheel: Tree | None, edits_to: Path | None, wait: float
) -> list[Step]:
    """Apply the whole series, or revert it, all or nothing. Returns what changed.

    Waits up to `wait` seconds for another call on the same target (LOCKED). Does not wait for a run that uses the
    target's environment (LOCKED): engines that it starts again would import other files.
    """

    def steps_now() -> list[Step]:
        return build(target, series, revert=revert, wheel=wheel, edits_to=edits_to)

    try:
        # Without changes to make, neither lock nor write access is needed. A killed call leaves its lock file behind.
        is_clean = not _lock_path(target).exists() or not os.access(target.parent, os.W_OK)
        if is_clean and not steps_now():
            return []
        with _hold_lock(target, series.version, wait):
            for path in target.parent.glob(f".{target.name}-patch-*"):
                shutil.rmtree(path)  # we hold the lock, so its creator is gone
            if steps := steps_now():
                with _refuse_under_a_run(target):
                    if edits_to:
                        save_edits(target, series, wheel, edits_to)
                    touched = pristine_texts(target, series, list(series.patched), wheel)
                    _install(target, series, steps + _links(target, steps), touched)
            _remove_empty_folders(target)
            originals.prune(target, series, is_applied=not revert)
            return steps
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            message = f"{error.filename2 or error.filename} is read-only for this user; nothing was changed"
            advice = "install OpenRLHF into your own environment, then run ./apply_patches.sh"
            raise PatchError(Exit.READ_ONLY, message, advice) from error
        advice = next_command(target, series.version, "status")
        raise PatchError(Exit.FAILED, str(error), advice) from error


def save_edits(target: Path, series: Series, wheel: Tree | None, to: Path) -> None:
    """Write the hand edits as a patch; a file that exists is not overwritten."""
    before, now = hand_edits(target, series, inspect(target, series), wheel)
    if before:
        try:
            originals.write_new(to, git.diff(before, now))
        except FileExistsError as error:
            raise PatchError(Exit.USAGE, f"{to} exists", inspect(target, series).next) from error


def _lock_path(target: Path) -> Path:
    return target.parent / f".{target.name}-patch.lock"


@contextlib.contextmanager
def _hold_lock(target: Path, version: str, wait: float) -> Iterator[None]:
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


@contextlib.contextmanager
def _refuse_under_a_run(target: Path) -> Iterator[None]:
    """Hold the lock of the environment, which the launcher of a run (scripts/launch.sh) shares."""
    config = next((each / "pyvenv.cfg" for each in target.parents if (each / "pyvenv.cfg").is_file()), None)
    if config is None:
        yield
        return
    with config.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"a run uses {config.parent}, and must end first; nothing was changed"
            raise PatchError(Exit.LOCKED, message, AGAIN) from None
        yield


def _is_at(lock: int, path: Path) -> bool:
    # The previous holder unlinked the file: a lock on an unlinked file protects nothing.
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False


def _install(target: Path, series: Series, steps: list[Step], touched: Texts) -> None:
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-patch-", dir=target.parent))
    done: list[Step] = []
    try:
        staged = [_stage(target, step, aside / str(number)) for number, step in enumerate(steps)]
        _keep(target, series, steps, touched)
        for step, new_file in zip(steps, staged, strict=True):
            if read_file(step.file) != step.old:
                message = f"{step.file} changed while it was being patched; nothing was changed"
                raise PatchError(Exit.FAILED, message, next_command(target, series.version, "status"))
            done.append(step)
            _put(step, new_file)
    except BaseException:
        for step in reversed(done):
            if read_file(step.file) == step.new:
                back = Step(step.file, step.new, step.old)
                _put(back, _stage(target, back, aside / "back"))
        raise
    finally:
        shutil.rmtree(aside)
    for folder in {step.file.parent for step in steps if step.file.parent.is_dir()}:
        handle = os.open(folder, os.O_RDONLY)
        os.fsync(handle)  # the new names, too, survive a power cut
        os.close(handle)


def _links(target: Path, steps: list[Step]) -> list[Step]:
    """Return a step that replaces each other file with hard links by a copy of its own.

    Installers link files to a cache. An edit in place would change the cache, and every environment that it serves.
    """
    files = {locate(target, path) for path in scan(target)} - {step.file for step in steps}
    texts = {file: read_file(file) for file in sorted(files) if file.lstat().st_nlink > 1}
    return [Step(file, text, text) for file, text in texts.items()]


def _keep(target: Path, series: Series, steps: list[Step], touched: Texts) -> None:
    """Keep OpenRLHF's own texts, RECORD, and the new texts. Hand edits are saved elsewhere, by the user's choice."""
    own = {path: read_installed(target, path) for path in series.pristine} | touched
    texts = [text for path, text in own.items() if sha256(text) == series.pristine.get(path)]
    record = originals.record(target, series.version)
    for text in [*texts, *(step.new for step in steps if step.file != record)]:
        if text is not None:
            originals.keep(target, str(sha256(text)), text)
    if originals.read_record(record) == series.pristine:
        originals.keep(target, "RECORD", record.read_bytes())


def _stage(target: Path, step: Step, aside: Path) -> Path | None:
    """Write the new text aside with the old file's mode and owner; a new file takes __init__.py's."""
    if step.new is None:
        return None
    like = (step.file if step.old is not None else target / "__init__.py").lstat()
    originals.write_new(aside, step.new)
    os.chmod(aside, like.st_mode & 0o7777)
    with contextlib.suppress(PermissionError):  # only root may give files away; group write is enough for us
        os.chown(aside, like.st_uid, like.st_gid)
    # Python validates a .pyc by its source's size and modification time in whole seconds. A time later than the old
    # file's, whatever the clock says, ensures that no .pyc of the old file ever matches.
    now = max(int(time.time()), int(like.st_mtime) + 1)
    os.utime(aside, (now, now))
    return aside


def _put(step: Step, new_file: Path | None) -> None:
    cache = step.file.parent / "__pycache__"
    for bytecode in [] if cache.is_symlink() else cache.glob(f"{step.file.stem}.*.pyc"):
        bytecode.unlink(missing_ok=True)
    if new_file is None:
        step.file.unlink()
    else:
        step.file.parent.mkdir(parents=True, exist_ok=True)
        os.replace(new_file, step.file)  # a new inode: other hard links of the old file keep their bytes


def _remove_empty_folders(target: Path) -> None:
    """Remove the folders without files; those of files that the patches created are empty after a revert."""
    for name, _, _ in os.walk(target, topdown=False):
        folder = Path(name)
        if folder.name != "__pycache__" and all(path.name == "__pycache__" for path in folder.iterdir()):
            shutil.rmtree(folder)
