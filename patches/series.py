"""A patch folder: `series` (the order), the patches, and the manifest that pins their results."""

import os
from dataclasses import dataclass
from pathlib import Path

from patches import unified
from patches.errors import Exit, PatchError
from patches.manifest import PRISTINE, Manifest, folder, sha256

Tree = dict[str, bytes]  # path -> text; an absent file has no key


@dataclass(frozen=True)
class Series:
    """The patches of one OpenRLHF version, in order, with their manifest."""

    manifest: Manifest
    patches: tuple[unified.Patch, ...]

    @classmethod
    def load(cls, version: str) -> "Series":
        """Read a folder. Raises BAD_SERIES if series, manifest and patch files contradict each other."""
        manifest = Manifest.load(version)
        names = read_order(folder(version) / "series")
        present = sorted(path.name for path in folder(version).glob("*.patch"))
        problems = [
            (manifest.version != version, f"the manifest is of version {manifest.version}"),
            (list(manifest.series) != names, "the series file and the manifest list different patches"),
            (len(set(names)) < len(names), "the series file lists a patch twice"),
            (sorted(names) != present, f"the series file lists {sorted(names)}, the folder has {present}"),
        ]
        for is_wrong, message in problems:
            if is_wrong:
                raise PatchError(Exit.BAD_SERIES, f"{folder(version)}: {message}")
        patches = tuple(unified.parse(name, (folder(version) / name).read_bytes()) for name in names)
        touched = {diff.path: [p.name for p in patches if any(d.path == diff.path for d in p.files)]
                   for patch in patches for diff in patch.files}  # fmt: skip
        named = {path: [name for name in states if name != PRISTINE] for path, states in manifest.files.items()}
        listed = {path: names for path, names in named.items() if names}
        if touched != listed:
            wrong = sorted(path for path in touched | listed if touched.get(path) != listed.get(path))
            raise PatchError(Exit.BAD_SERIES, f"{folder(version)}: patches and manifest differ on {', '.join(wrong)}")
        return cls(manifest, patches)

    def diffs(self, path: str) -> list[tuple[str, unified.FileDiff]]:
        """Return the changes of one file in order, each with the name of its patch."""
        return [(patch.name, diff) for patch in self.patches for diff in patch.files if diff.path == path]

    def move(self, path: str, text: bytes | None, start: int, stop: int) -> bytes | None:
        """Bring a file from its state number `start` to number `stop` of `manifest.chain(path)`.

        Patches apply forwards or backwards; every result is checked against the manifest.
        """
        diffs, chain = self.diffs(path), self.manifest.chain(path)
        steps = [(i, i + 1) for i in range(start, stop)] or [(i, i - 1) for i in range(start, stop, -1)]
        for now, then in steps:
            name, diff = diffs[min(now, then)]
            text = diff.apply(text, name) if then > now else diff.reversed().apply(text, f"{name} (reversed)")
            if sha256(text) != chain[then]:
                direction = "applied" if then > now else "reversed"
                message = f"{name} {direction} on {path} gives {sha256(text)}, the manifest says {chain[then]}"
                raise PatchError(Exit.BAD_SERIES, message)
        return text

    def check(self, pristine: dict[str, bytes | None]) -> None:
        """Raise BAD_SERIES unless the pristine texts, patched, give the manifest's states, and back."""
        for path, text in pristine.items():
            chain = self.manifest.chain(path)
            if sha256(text) != chain[0]:
                raise PatchError(Exit.BAD_SERIES, f"{path} is not the pristine file that the manifest names")
            patched = self.move(path, text, 0, len(chain) - 1)
            self.move(path, patched, len(chain) - 1, 0)


def read_order(path: Path) -> list[str]:
    """Return the patch names of a series file: one per line, `#` starts a comment."""
    if not path.is_file():
        raise PatchError(Exit.BAD_SERIES, f"{path} is missing")
    lines = path.read_bytes().decode().split("\n")
    if any(line.endswith("\r") for line in lines):
        remedy = "git config core.autocrlf false && git checkout -- patches"
        raise PatchError(Exit.BAD_SERIES, f"{path} has CRLF line ends; check it out again with LF", remedy)
    return [name for line in lines if (name := line.split("#")[0].strip())]


@dataclass(frozen=True)
class Change:
    """One patch as an author has it: its name, its header and each file before and after."""

    name: str
    header: str
    files: dict[str, tuple[bytes | None, bytes | None]]

    def patch(self) -> unified.Patch:
        diffs = tuple(unified.make_diff(path, *self.files[path]) for path in sorted(self.files))
        return unified.Patch(self.name, self.header, diffs)


def write_folder(target: Path, version: str, changes: list[Change]) -> list[str]:
    """Write series, patches and manifest. Returns the names of the files that changed.

    The comment block at the top of an existing series file is kept. So are the left-behind files recorded in the
    existing manifest, or in the version's own one if `target` has none.
    """
    files: dict[str, dict[str, str | None]] = {}
    for change in changes:
        for path in sorted(change.files):
            old, new = change.files[path]
            files.setdefault(path, {PRISTINE: sha256(old)})[change.name] = sha256(new)
    names = tuple(change.name for change in changes)
    manifest = Manifest(version, names, dict(sorted(files.items())))
    older = next(
        (candidate for candidate in (target, folder(version)) if (candidate / "manifest.json").is_file()), None
    )
    if older:
        manifest = manifest.succeeding(Manifest.load(version, older))
    contents = {change.name: change.patch().render() for change in changes}
    contents["series"] = _series_text(target / "series", names)
    contents["manifest.json"] = manifest.render()
    target.mkdir(parents=True, exist_ok=True)
    changed = []
    for stale in sorted(target.glob("*.patch")):
        if stale.name not in contents:
            stale.unlink()
            changed.append(stale.name)
    for name, data in contents.items():
        candidate = target / name
        if not candidate.is_file() or candidate.read_bytes() != data:
            aside = target / f".{name}.new"
            aside.write_bytes(data)
            os.replace(aside, candidate)
            changed.append(name)
    return changed


def _series_text(path: Path, names: tuple[str, ...]) -> bytes:
    if path.is_file() and read_order(path) == list(names):
        return path.read_bytes()
    comments = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        if not line.startswith("#"):
            break
        comments.append(line)
    comments = comments or ["# The order in which the patches apply, one a line."]
    return "".join(f"{line}\n" for line in (*comments, *names)).encode()
