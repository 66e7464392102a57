"""The installed package: its state, and the transaction that replaces it.

`.openrlhf-original/`, beside the package, keeps OpenRLHF's own package and the digest that `apply` left last. Digests
tell the state. A package was edited by hand if its digest is neither that one nor one of the series' two.
"""

import contextlib
import errno
import fcntl
import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from patches import tree
from patches.series import Exit, PatchError, Series

STATES = {"applied": Exit.OK, "pristine": Exit.PRISTINE, "drifted": Exit.DRIFTED, "edited": Exit.EDITED}


def find_package(target: Path | None = None) -> Path:
    """Return the `openrlhf` package to patch: the one given, or the one that this Python would import.

    Raises:
        PatchError: MISSING without a package, or for a symbolic link or another package.
    """
    if target is None:
        spec = importlib.util.find_spec("openrlhf")  # does not import it
        # A call that was killed between two renames left a folder without the package.
        folders = [Path(spec.origin).parents[1]] if spec and spec.origin else filter(_is_torn, map(Path, sys.path))
        target = next((folder / "openrlhf" for folder in folders), None)
        if target is None:
            raise PatchError(Exit.MISSING, f"OpenRLHF is not installed in {sys.prefix}", "./scripts/setup.sh")
    target = Path(os.path.abspath(target))
    is_package = (target / "__init__.py").is_file() or _is_torn(target.parent)
    if target.name != "openrlhf" or target.is_symlink() or not is_package:
        raise PatchError(
            Exit.MISSING, f"{target} is not the folder of an OpenRLHF package", "give --target DIR/openrlhf"
        )
    return target


def _is_torn(folder: Path) -> bool:
    return (folder / ".openrlhf-old").is_dir()


def find_version(package: Path) -> str:
    """Return OpenRLHF's version from the metadata beside the package. Raises UNKNOWN_VERSION."""
    files = package.parent.glob("openrlhf-*.dist-info/METADATA")
    found = {match[1] for file in files if (match := re.search(r"^Version: *(\S+)", file.read_text("utf-8"), re.M))}
    if len(found) != 1:
        what = f"versions {', '.join(sorted(found))} are" if found else "no version is"
        message = f"{what} recorded beside {package}: a checkout, an editable install, or two installations"
        raise PatchError(
            Exit.UNKNOWN_VERSION, message, "unset PYTHONPATH, or install OpenRLHF again: ./scripts/setup.sh"
        )
    return found.pop()


@dataclass(frozen=True)
class Status:
    """What `status` reports: `state` is one of STATES, `next` the command to type."""

    state: str
    message: str
    next: str
    target: str
    version: str
    digest: str
    expected_digest: str


@dataclass(frozen=True)
class Installed:
    """An installed package and its series."""

    package: Path
    series: Series

    def _beside(self, name: str) -> Path:
        return self.package.with_name(f".openrlhf-{name}")

    def inspect(self) -> Status:
        now, series = tree.digest(self.package), self.series
        if _is_torn(self.package.parent):
            state, message, command = "drifted", "a call was killed here", self.command("apply")
        elif now == series.patched:
            state, message, command = "applied", f"all {len(series.patches)} patches are applied", ""
        elif now == series.pristine:
            state, message, command = "pristine", "not patched", self.command("apply")
        elif now == self._read_last():
            state, message, command = "drifted", "as another release of the patches left it", self.command("apply")
        else:
            state, message = "edited", f"edited by hand; {self.command('diff')} shows the edits"
            command = self.command("apply --edits-to my-edits.patch")
        return Status(state, message, command, str(self.package), series.version, now, series.patched)

    def command(self, words: str) -> str:
        """Return the command to type for this package."""
        spec = importlib.util.find_spec("openrlhf")
        is_default = spec and spec.origin == str(self.package / "__init__.py")
        return f"./apply_patches.sh {words}" + ("" if is_default else f" --target {shlex.quote(str(self.package))}")

    def _read_last(self) -> str:
        file = self._beside("original") / "left"
        return file.read_text() if file.is_file() else ""

    def find_original(self) -> Path:
        """Return OpenRLHF's own package: kept, or installed. Raises MISSING."""
        for package in (self._beside("original") / "openrlhf", self.package):
            if tree.digest(package) == self.series.pristine:
                return package
        version = self.series.version
        remedy = f"uv pip install --reinstall --no-deps --link-mode copy openrlhf=={version} && {self.command('apply')}"
        raise PatchError(Exit.MISSING, f"OpenRLHF {version}'s own files are not kept beside {self.package}", remedy)

    def build(self, to: Path) -> Path:
        """Build the patched package in the folder `to`. Raises BAD_SERIES if it is not the one of the digests."""
        tree.copy(self.find_original(), to / "openrlhf")
        tree.apply(self.series.patches, to / "openrlhf")
        if tree.digest(to / "openrlhf") != self.series.patched:
            message = f"the patches for {self.series.version} do not lead to the digest in digests.json"
            raise PatchError(Exit.BAD_SERIES, message, "git checkout patches, or export your commits again")
        return to / "openrlhf"

    def change(self, *, reverts: bool) -> bool:
        """Apply the series, or revert it; returns whether that changed anything.

        A call that is killed leaves the old package or the new one, perhaps as `.openrlhf-old`; the next one goes on.

        Raises:
            PatchError: LOCKED under a run; FAILED if a file cannot be written.
        """
        wanted = self.series.pristine if reverts else self.series.patched
        if not _is_torn(self.package.parent) and tree.digest(self.package) == wanted:
            return False
        try:
            with self._lock():
                self._recover()
                if tree.digest(self.package) != wanted:
                    self._replace(reverts)
                if reverts:
                    shutil.rmtree(self._beside("original"), ignore_errors=True)
                else:
                    (self._beside("original") / "left").write_text(wanted)
        except OSError as error:
            raise PatchError(Exit.FAILED, str(error), self.command("status")) from error
        return True

    def _recover(self) -> None:
        shutil.rmtree(self._beside("new"), ignore_errors=True)
        if not _is_torn(self.package.parent):
            return
        if tree.digest(self.package) in (self.series.pristine, self.series.patched):
            self._put_away()
        else:
            shutil.rmtree(self.package, ignore_errors=True)
            os.rename(self._beside("old"), self.package)

    def _replace(self, reverts: bool) -> None:
        stage, old = self._beside("new"), self._beside("old")
        stage.mkdir()
        if reverts:
            tree.copy(self.find_original(), stage / "openrlhf")
        else:
            self.build(stage)
        try:
            os.rename(self.package, old)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # In a container: overlayfs cannot rename a folder of the image.
            shutil.copytree(self.package, stage / "old", symlinks=True)
            os.rename(stage / "old", old)
            shutil.rmtree(self.package)
        os.rename(stage / "openrlhf", self.package)
        self._put_away()
        stage.rmdir()

    def _put_away(self) -> None:
        """Keep the replaced package if it is OpenRLHF's own; otherwise delete it."""
        old, kept = self._beside("old"), self._beside("original")
        if tree.digest(old) == self.series.pristine:
            shutil.rmtree(kept, ignore_errors=True)
            kept.mkdir()
            os.rename(old, kept / "openrlhf")
        else:
            shutil.rmtree(old)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the lock of the environment, which the launcher of a run (scripts/launch.sh) shares."""
        configs = (folder / "pyvenv.cfg" for folder in self.package.parents)
        lock = os.open(next((file for file in configs if file.is_file()), self.package.parent), os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            message = f"a run or another call uses the environment of {self.package}; nothing was changed"
            raise PatchError(Exit.LOCKED, message, "call it again once that has ended") from None
        finally:
            os.close(lock)
