"""The manifest of a patch folder: the sha256 of every touched file, pristine and after each patch."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from patches.errors import Exit, PatchError

ROOT = Path(__file__).resolve().parent  # holds one folder per upstream version
PACKAGE = "openrlhf"
PRISTINE = "pristine"


def sha256(text: bytes | None) -> str | None:
    """Return the hex sha256, or None for an absent file."""
    return None if text is None else hashlib.sha256(text).hexdigest()


def folder(version: str) -> Path:
    return ROOT / f"{PACKAGE}-{version}"


def known_versions() -> list[str]:
    """Return the OpenRLHF versions that have a patch folder."""
    prefix = f"{PACKAGE}-"
    return sorted(path.parent.name.removeprefix(prefix) for path in ROOT.glob(f"{prefix}*/manifest.json"))


@dataclass(frozen=True)
class Manifest:
    """`files[path]` maps "pristine" and the name of each patch that touches `path` to a sha256.

    None instead of a sha256 means that the file is absent in that state. Paths start with `openrlhf/`. `series` is the
    order of the patches. `earlier[path]` holds the sha256 of files left by earlier exports of the series. No patch of
    this export can revert them.
    """

    version: str
    series: tuple[str, ...]
    files: dict[str, dict[str, str | None]]
    earlier: dict[str, list[str | None]] = field(default_factory=dict)

    @classmethod
    def load(cls, version: str, source: Path | None = None) -> "Manifest":
        path = (source or folder(version)) / "manifest.json"
        if not path.is_file():
            known = ", ".join(known_versions()) or "none"
            raise PatchError(
                Exit.UNKNOWN_VERSION,
                f"there are no patches for OpenRLHF {version} (available: {known})",
                f"./apply_patches.sh refresh --to {version}",
            )
        try:
            data = json.loads(path.read_bytes())
            return cls(
                data["version"],
                tuple(data["series"]),
                {name: dict(data["files"][name]) for name in data["files"]},
                data.get("earlier", {}),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise PatchError(Exit.BAD_SERIES, f"{path} is not a manifest: {error!r}") from error

    def render(self) -> bytes:
        data = {"version": self.version, "series": list(self.series), "files": self.files, "earlier": self.earlier}
        return (json.dumps(data, indent=2) + "\n").encode()

    def chain(self, path: str) -> list[str | None]:
        """Return the known states of a file: pristine first, then one for each patch that touches it."""
        states = self.files[path]
        return [states[PRISTINE]] + [states[name] for name in self.series if name in states]

    def after(self, path: str, applied: int) -> str | None:
        """Return the state of a file after the first `applied` patches of the series."""
        return self.chain(path)[sum(name in self.files[path] for name in self.series[:applied])]

    def succeeding(self, older: "Manifest") -> "Manifest":
        """Return this manifest plus the files that `older`, an export of the same version, left behind.

        A file that only `older` touched stays listed with its pristine state alone, since it must return to it.
        """
        files: dict[str, dict[str, str | None]] = dict(self.files)
        earlier: dict[str, list[str | None]] = {}
        for path, states in older.files.items():
            files.setdefault(path, {PRISTINE: states[PRISTINE]})
        for path in sorted(files):
            known = list(older.earlier.get(path, []))
            if path in older.files:
                known.append(older.chain(path)[-1])
            chain = Manifest(self.version, self.series, files).chain(path)
            if left := [state for state in dict.fromkeys(known) if state not in chain]:
                earlier[path] = left
        return Manifest(self.version, self.series, dict(sorted(files.items())), earlier)

    def digest(self, state: Callable[[str], str | None]) -> str:
        """Return one sha256 over version, series and the state (sha256 or None) of every touched file."""
        records = [[path, state(path)] for path in sorted(self.files)]
        return hashlib.sha256(json.dumps([self.version, self.series, records]).encode()).hexdigest()

    def expected_digest(self) -> str:
        return self.digest(lambda path: self.after(path, len(self.series)))
