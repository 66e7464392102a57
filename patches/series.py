"""A series per OpenRLHF version: `openrlhf-VERSION/` has the patches, their order, and the digests before and after."""

import json
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

ROOT = Path(__file__).resolve().parent
RESTORE = "git stash push --include-untracked -- patches"  # as committed; own edits stay in the stash


class Exit(IntEnum):
    """Exit codes. `status` returns that of the state it finds, so 0 means that the whole series is applied."""

    OK = 0
    FAILED = 1
    USAGE = 2
    PRISTINE = 10
    DRIFTED = 12  # as another release of the patches left it, or a call that was killed
    EDITED = 13  # neither OpenRLHF nor this tool wrote it so
    UNKNOWN_VERSION = 14  # there are no patches for it
    MISSING = 15  # no OpenRLHF, or not its original files
    BAD_SERIES = 20  # the patches do not lead to the digest that belongs to them
    LOCKED = 22  # a run uses the environment, or another call is at work


class PatchError(Exception):
    """A problem with its exit code and the next command to type."""

    def __init__(self, code: Exit, message: str, next_command: str = "") -> None:
        super().__init__(message)
        self.code, self.next_command = code, next_command


@dataclass(frozen=True)
class Series:
    """The patches of a version in their order, and the digests of the package without and with them."""

    version: str
    patches: list[Path]
    pristine: str
    patched: str


def folder(version: str) -> Path:
    return ROOT / f"openrlhf-{version}"


def known_versions() -> list[str]:
    return sorted(path.parent.name.removeprefix("openrlhf-") for path in ROOT.glob("openrlhf-*/digests.json"))


def load(version: str) -> Series:
    """Return the series of a version. Raises UNKNOWN_VERSION, or BAD_SERIES for an unreadable file."""
    here, known = folder(version), known_versions()
    if version not in known:
        remedy = "./scripts/setup.sh installs the pinned one; CONTRIBUTING.md says how to move the patches"
        what = f"there are no patches for OpenRLHF {version}, only for {', '.join(known)}"
        raise PatchError(Exit.UNKNOWN_VERSION, what, remedy)
    try:
        digests = json.loads((here / "digests.json").read_bytes())
        names = (here / "series").read_text().split()
        return Series(version, [here / name for name in names], digests["pristine"], digests["patched"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PatchError(Exit.BAD_SERIES, f"{here} is incomplete: {error!r}", RESTORE) from error
