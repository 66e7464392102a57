"""The installed package: its state, and the change of its files.

`.openrlhf-original/`, beside the package, keeps OpenRLHF's own package. `left` there has the digests of the files that
this tool left last, and during a change also of those before it. Other files are hand edits.
"""

import contextlib
import fcntl
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from patches import tree
from patches.series import RESTORE, Exit, PatchError, Series

STATES = {"applied": Exit.OK, "pristine": Exit.PRISTINE, "drifted": Exit.DRIFTED, "edited": Exit.EDITED}
APPLY = "./apply_patches.sh apply"


def find_package(target: Path | None = None) -> Path:
    """Return the package to patch: the one given, or the one that this Python would import. Raises MISSING."""
    if target is None:
        spec = importlib.util.find_spec("openrlhf")  # does not import it
        if spec is None or spec.origin is None:
            raise PatchError(Exit.MISSING, "OpenRLHF is not installed", "./scripts/setup.sh")
        target = Path(spec.origin).parent
    target = Path(os.path.abspath(target))
    if target.name != "openrlhf" or target.is_symlink() or not (target / "__init__.py").is_file():
        raise PatchError(Exit.MISSING, f"{target} is no OpenRLHF package", "give --target DIR/openrlhf")
    return target


def find_version(package: Path) -> str:
    """Return OpenRLHF's version from the metadata beside the package. Raises UNKNOWN_VERSION."""
    found = {one.metadata["Version"] for one in distributions(name="openrlhf", path=[str(package.parent)])}
    if len(found) == 1 and (version := found.pop()):
        return version
    what = f"not one version is recorded beside {package}: a checkout, an editable install, or two installations"
    raise PatchError(Exit.UNKNOWN_VERSION, what, "unset PYTHONPATH, or install OpenRLHF again: ./scripts/setup.sh")


@dataclass(frozen=True)
class Installed:
    """An installed package and its series."""

    package: Path
    series: Series

    @property
    def _kept(self) -> Path:
        return self.package.with_name(".openrlhf-original")

    def inspect(self) -> dict[str, str]:
        """Return the package's `state`, one of STATES, what it follows from, and the command to type `next`."""
        now, series = tree.digest(self.package), self.series
        if now == series.patched:
            state, message, command = "applied", f"all {len(series.patches)} patches are applied", ""
        elif now == series.pristine:
            state, message, command = "pristine", "not patched", APPLY
        elif self._is_written():
            state, message, command = "drifted", "as other patches, or a call that was killed, left it", APPLY
        else:
            state, message = "edited", "edited by hand (the command `diff` shows the edits)"
            command = f"{APPLY} --edits-to my-edits.patch"
        facts = {"target": str(self.package), "version": series.version, "digest": now}
        return {"state": state, "message": message, "next": command, **facts, "expected_digest": series.patched}

    def _is_written(self) -> bool:
        """Return whether this tool wrote all files of the package, and none is missing."""
        note, files = self._kept / "left", tree.read(self.package)
        text = note.read_text() if note.is_file() else "[]"
        if text == tree.digest(self.package):  # an earlier release noted the package's digest
            return True
        written = json.loads(text) if text.startswith("[") else []
        return all(files.get(name) in [one.get(name) for one in written] for name in set(files).union(*written))

    def find_original(self) -> Path:
        """Return OpenRLHF's own package: kept, or installed. Raises MISSING."""
        for package in (self._kept / "openrlhf", self.package):
            if tree.digest(package) == self.series.pristine:
                return package
        remedy = f"uv pip install --reinstall --no-deps --link-mode copy openrlhf=={self.series.version} && {APPLY}"
        raise PatchError(Exit.MISSING, f"OpenRLHF's own files are not kept beside {self.package}", remedy)

    @contextlib.contextmanager
    def build(self) -> Iterator[Path]:
        """Build the patched package in a temporary folder. Raises BAD_SERIES if it is not the one of the digests."""
        with tempfile.TemporaryDirectory(prefix="openrlhf-build-") as scratch:
            built = tree.copy(self.find_original(), Path(scratch, "openrlhf"))
            try:
                tree.git(built.parent, "apply", "--whitespace=nowarn", *self.series.patches)
            except PatchError as error:
                raise PatchError(Exit.BAD_SERIES, str(error), error.next_command or RESTORE) from error
            if tree.digest(built) != self.series.patched:
                what = "the patches do not lead to the digest in digests.json"
                raise PatchError(Exit.BAD_SERIES, what, f"{RESTORE}, or export your commits again")
            yield built

    def diff(self) -> str:
        """Return the hand edits as a patch; without any, what differs from OpenRLHF's own files."""
        with tempfile.TemporaryDirectory(prefix="openrlhf-diff-") as scratch:
            tree.copy(self.package, Path(scratch, "b", "openrlhf"))
            if self.inspect()["state"] == "edited":
                with self.build() as built:
                    tree.copy(built, Path(scratch, "a", "openrlhf"))
            else:
                tree.copy(self.find_original(), Path(scratch, "a", "openrlhf"))
            return tree.git(Path(scratch), "diff", "--no-index", "--no-prefix", "--no-renames", "a", "b", good=(0, 1))

    def change(self, *, reverts: bool) -> None:
        """Apply or revert the series. The next call mends a killed one. Raises LOCKED during a run, or FAILED."""
        try:
            with self._lock():
                if (original := self.find_original()) == self.package:
                    shutil.rmtree(self._kept, ignore_errors=True)
                    original = tree.copy(self.package, self._kept / "openrlhf")
                if reverts:
                    self._write(original)
                    shutil.rmtree(self._kept, ignore_errors=True)
                else:
                    with self.build() as built:
                        self._write(built)
        except OSError as error:
            raise PatchError(Exit.FAILED, str(error), "./apply_patches.sh status") from error

    def _write(self, new: Path) -> None:
        """Make the package equal to `new`, file by file. Installers link files to their cache, so none is kept."""
        before, after, stage = tree.read(self.package), tree.read(new), self._kept / "stage"
        self._note(before, after)
        for name in before.keys() - after.keys():
            (self.package / name).unlink()
        for name in after:
            (self.package / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(new / name, stage)
            os.replace(stage, self.package / name)
        self._note(after)

    def _note(self, *written: dict[str, str]) -> None:
        (self._kept / "note").write_text(json.dumps(written))
        os.replace(self._kept / "note", self._kept / "left")

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the lock of the environment, which the launcher of a run (scripts/launch.sh) shares."""
        configs = (folder / "pyvenv.cfg" for folder in self.package.parents)
        lock = os.open(next(filter(Path.is_file, configs), self.package.parent), os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            what = f"a run or another call uses the environment of {self.package}; nothing was changed"
            raise PatchError(Exit.LOCKED, what, "call it again once that has ended") from None
        finally:
            os.close(lock)
