"""Finds the installed package and its version, and derives the patch state from hashes alone."""

import importlib.util
import os
import stat
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from patches.errors import Exit, PatchError
from patches.manifest import PACKAGE, Manifest, sha256

STATES = {  # state name -> exit code of `status`
    "applied": Exit.OK,
    "pristine": Exit.PRISTINE,
    "partial": Exit.PARTIAL,
    "drifted": Exit.DRIFTED,
    "edited": Exit.EDITED,
    "unknown version": Exit.UNKNOWN_VERSION,
    "missing": Exit.MISSING,
}


def find_target() -> Path:
    """Return the `openrlhf` package that the running Python would import, without importing it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.origin:
        raise PatchError(
            Exit.MISSING,
            f"OpenRLHF is not installed in {sys.prefix}",
            "install it there, or name the package: ./apply_patches.sh --target DIR/openrlhf",
        )
    return Path(spec.origin).parent


def check_target(target: Path) -> Path:
    """Return the absolute path of a package directory. Raises if it is absent or a symbolic link."""
    target = Path(os.path.abspath(target))
    if target.is_symlink():
        real = target.resolve()
        message = f"{target} is a symbolic link; patching it would change {real}"
        raise PatchError(Exit.UNSAFE_FILE, message, f"./apply_patches.sh --target {real}")
    if not (target / "__init__.py").is_file():
        message = f"{target} is not an OpenRLHF package: __init__.py is missing"
        raise PatchError(Exit.MISSING, message, "./apply_patches.sh --target DIR/openrlhf")
    return target


def installed_version(target: Path) -> str:
    """Return OpenRLHF's version from the dist-info METADATA next to the package."""
    versions = {}
    for path in sorted(target.parent.glob(f"{PACKAGE}-*.dist-info/METADATA")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("Version:"):
                versions[line.removeprefix("Version:").strip()] = path
                break
    if len(versions) != 1:
        what = f"several versions ({', '.join(versions)})" if versions else "no openrlhf-*.dist-info/METADATA"
        message = f"cannot tell the OpenRLHF version of {target}: {what} next to it"
        raise PatchError(Exit.UNKNOWN_VERSION, message, "./apply_patches.sh status --version VERSION")
    return next(iter(versions))


def next_command(target: Path, version: str, words: str) -> str:
    """Return the command to type for this target, with flags wherever the defaults would be wrong."""
    flags = ""
    try:
        flags += "" if target == check_target(find_target()) else f" --target {target}"
    except PatchError:
        flags += f" --target {target}"
    try:
        flags += "" if version == installed_version(target) else f" --version {version}"
    except PatchError:
        flags += f" --version {version}"
    return f"./apply_patches.sh {words}{flags}"


def locate(target: Path, path: str) -> Path:
    """Return the location of `openrlhf/...` in the target. Raises UNSAFE_FILE at a symbolic link on the way."""
    file = target
    for part in path.split("/")[1:]:
        file = file / part
        if file.is_symlink():
            message = f"{file} is a symbolic link to {os.readlink(file)}; patches never follow one"
            remedy = f"reinstall without links: uv pip install --link-mode copy --reinstall --no-deps {PACKAGE}"
            raise PatchError(Exit.UNSAFE_FILE, message, remedy)
    return file


def read_installed(target: Path, path: str) -> bytes | None:
    """Return the bytes of `openrlhf/...` in the target, None if it is absent."""
    file = locate(target, path)
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            raise PatchError(Exit.UNSAFE_FILE, f"{file} is not a regular file")
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def digest(target: str | os.PathLike[str], version: str | None = None) -> str:
    """Return one sha256 of the installed bytes of every file that the patches touch (plus version, series).

    It equals `expected_digest(version)` exactly if all patches are applied and nothing else changed those files.
    Imports neither OpenRLHF nor anything heavy; `target` is the `openrlhf` directory. Raises PatchError if there is no
    OpenRLHF, or no patches for its version.
    """
    package = check_target(Path(target))
    manifest = Manifest.load(version or installed_version(package))
    return manifest.digest(lambda path: sha256(read_installed(package, path)))


def expected_digest(version: str) -> str:
    """Return the digest of a fully patched OpenRLHF of this version."""
    return Manifest.load(version).expected_digest()


@dataclass(frozen=True)
class FileRecord:
    """One touched file: `position` is its place in the manifest's chain, None if unknown."""

    path: str
    state: str
    found: str | None
    expected: str | None
    position: int | None
    last: int
    note: str = ""
    is_earlier: bool = False  # as an earlier release of the patches left it


@dataclass(frozen=True)
class Status:
    """What `status` reports; `state` is one of STATES, `next` the command to type."""

    state: str
    target: str
    version: str
    message: str
    next: str = ""
    applied: int = 0
    total: int = 0
    digest: str = ""
    expected_digest: str = ""
    files: list[FileRecord] = field(default_factory=list)

    @property
    def code(self) -> Exit:
        return STATES[self.state]

    def as_json(self) -> dict:
        return asdict(self) | {"code": int(self.code)}


def inspect(target: Path, manifest: Manifest) -> Status:
    """Derive the state of an installed package from the hashes of its touched files."""
    records = [_record(target, manifest, path) for path in sorted(manifest.files)]
    installed = {record.path: record.found for record in records}
    total = len(manifest.series)
    matching = [n for n in range(total + 1) if all(manifest.after(p, n) == installed[p] for p in installed)]
    applied = max(matching, default=0)
    unknown = [record.path for record in records if record.position is None and not record.is_earlier]
    earlier = [record.path for record in records if record.is_earlier]
    apply = next_command(target, manifest.version, "apply")
    if unknown:
        message = f"{len(unknown)} file(s) edited by hand: {', '.join(unknown)}"
        # The pristine text of unknown files can only come from the wheel; their contents are then lost.
        state, pin = "edited", f"{PACKAGE}=={manifest.version}"
        download = f"{sys.executable} -m pip download --no-deps {pin}"
        advice = f"{download} && {apply} --wheel {pin.replace('==', '-')}-*.whl"
    elif earlier:
        state, advice = "drifted", apply
        message = f"{len(earlier)} file(s) are as an earlier release of the patches left them"
    elif not matching:
        state, message = "drifted", "the files are known, but from different points of the series"
        advice = apply
    elif applied == total:
        state, message, advice = "applied", f"applied {total} of {total}", ""
    else:
        state = "partial" if applied else "pristine"
        message, advice = f"applied {applied} of {total}" if applied else "pristine", apply
    return Status(
        state=state,
        target=str(target),
        version=manifest.version,
        message=message,
        next=advice,
        applied=applied,
        total=total,
        digest=manifest.digest(lambda path: installed[path]),
        expected_digest=manifest.expected_digest(),
        files=records,
    )


def _record(target: Path, manifest: Manifest, path: str) -> FileRecord:
    text, chain = read_installed(target, path), manifest.chain(path)
    installed, note = sha256(text), ""
    # The last match: a patch that reverts another one repeats a hash.
    position = max((i for i, known in enumerate(chain) if known == installed), default=None)
    is_earlier = position is None and installed in manifest.earlier.get(path, [])
    if is_earlier:
        state = "of an earlier release"
    elif position is None and text is None:
        state, note = "missing", "the file is gone"
    elif position is None and text is not None:
        state = "edited"
        if b"\0" in text:
            note = "it has a NUL byte, so it is not a text file"
        elif b"\r\n" in text and sha256(text.replace(b"\r\n", b"\n")) in chain:
            note = "only its line endings differ: CRLF instead of LF"
    elif position == len(chain) - 1:
        state = "applied"
    else:
        state = f"applied {position} of {len(chain) - 1}" if position else "pristine"
    return FileRecord(path, state, installed, chain[-1], position, len(chain) - 1, note, is_earlier)
