"""The series: its order in the base folder, one folder for each OpenRLHF version, each with a manifest.

The base folder holds `series` and every patch. The folder of another version names its base and holds only the patches
that differ there.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from patches.errors import AGAIN, Exit, PatchError

ROOT = Path(__file__).resolve().parent  # holds one folder per upstream version
PACKAGE = "openrlhf"
RESTORE = "git stash push --include-untracked -- patches"  # as committed; own edits stay in the stash
WITH_LF = f"git config core.autocrlf false && {RESTORE}"


def sha256(text: bytes | None) -> str | None:
    """Return the hex sha256, or None for an absent file."""
    return None if text is None else hashlib.sha256(text).hexdigest()


def folder(version: str) -> Path:
    return ROOT / f"{PACKAGE}-{version}"


def known_versions() -> list[str]:
    """Return the OpenRLHF versions that have a patch folder."""
    prefix = f"{PACKAGE}-"
    return sorted(path.parent.name.removeprefix(prefix) for path in ROOT.glob(f"{prefix}*/manifest.json"))


def base_version() -> str:
    """Return the version whose folder holds the whole series."""
    known = [version for version in known_versions() if Series.load(version).base == version]
    if len(known) != 1:
        what = f"there are base series for {', '.join(known) or 'no version'}"
        raise PatchError(Exit.USAGE, f"which version? {what}", f"{AGAIN} --version {known[0]}" if known else "")
    return known[0]


@dataclass(frozen=True)
class Series:
    """The manifest of a version: what must be there before and after the series.

    `patches` has the sha256 of each patch file, `retired` the reason for each patch that upstream made unnecessary.
    `pristine` has the sha256 of every file of the wheel's package, `patched` that of each file that the series
    changes; None means that it deletes the file.
    """

    version: str
    base: str
    patches: dict[str, str]
    retired: dict[str, str]
    pristine: dict[str, str]
    patched: dict[str, str | None]

    @classmethod
    def load(cls, version: str) -> "Series":
        path = folder(version) / "manifest.json"
        if not path.is_file():
            known = ", ".join(known_versions()) or "none"
            message = f"there are no patches for OpenRLHF {version} (available: {known})"
            raise PatchError(Exit.UNKNOWN_VERSION, message, f"./apply_patches.sh refresh --to {version}")
        try:
            series = cls(**json.loads(path.read_bytes()))
        except (ValueError, TypeError) as error:
            raise PatchError(Exit.BAD_SERIES, f"{path} is not a manifest: {error!r}") from error
        if series.version != version:
            raise PatchError(Exit.BAD_SERIES, f"{path} is of version {series.version}")
        return series

    @classmethod
    def load_checked(cls, version: str) -> "Series":
        """Load, and raise BAD_SERIES unless every patch is there, unchanged, or retired with a reason."""
        series = cls.load(version)
        order, here = read_order(folder(series.base) / "series"), folder(version)
        named = [*series.patches, *series.retired]
        texts = {file.name: file.read_bytes() for file in series.files() if file.is_file()}
        missing = sorted(series.patches.keys() - texts.keys())
        stray = sorted({path.name for path in here.glob("*.patch")} - series.patches.keys())
        wrong = [name for name, text in texts.items() if sha256(text) != series.patches[name]]
        has_crlf = any(b"\r\n" in texts[name] for name in wrong)
        problems = [
            (len(set(order)) < len(order), "the series file lists a patch twice"),
            ([name for name in order if name not in series.retired] != list(series.patches) or
             not set(series.retired) <= set(order),
             f"the manifest and {folder(series.base) / 'series'} differ on "
             f"{', '.join(sorted(set(order) ^ set(named))) or 'the order'}"),
            (any(not reason.strip() for reason in series.retired.values()), "a retired patch has no reason"),
            (missing, f"missing: {', '.join(missing)}"),
            (stray, f"not in the series: {', '.join(stray)}"),
            (has_crlf, f"{', '.join(wrong)} has CRLF line ends"),
            (wrong, f"{', '.join(wrong)} is not the patch that the manifest names"),
        ]  # fmt: skip
        for is_wrong, message in problems:
            if is_wrong:
                raise PatchError(Exit.BAD_SERIES, f"{here}: {message}", WITH_LF if has_crlf else RESTORE)
        return series

    def file(self, name: str) -> Path:
        """Return the file of a patch: the version's own one, otherwise that of the base."""
        own = folder(self.version) / name
        return own if own.is_file() else folder(self.base) / name

    def files(self) -> list[Path]:
        return [self.file(name) for name in self.patches]

    def list_expected(self) -> dict[str, str]:
        """Return the sha256 of every file of the package once patched."""
        return {path: state for path, state in (self.pristine | self.patched).items() if state is not None}

    def digest(self, files: dict[str, str]) -> str:
        """Return one sha256 over version, series and every file of the package."""
        record = [self.version, list(self.patches), sorted(files.items())]
        return hashlib.sha256(json.dumps(record).encode()).hexdigest()

    def render(self) -> bytes:
        return (json.dumps(self.__dict__, indent=2) + "\n").encode()


def read_order(path: Path) -> list[str]:
    """Return the patch names of a series file: one per line, `#` starts a comment."""
    if not path.is_file():
        raise PatchError(Exit.BAD_SERIES, f"{path} is missing", RESTORE)
    lines = path.read_bytes().decode().split("\n")
    if any(line.endswith("\r") for line in lines):
        raise PatchError(Exit.BAD_SERIES, f"{path} has CRLF line ends; check it out again with LF", WITH_LF)
    return [name for line in lines if (name := line.split("#")[0].strip())]
