"""The installed package: where it is, its version, and its state, derived from the hashes of all its files."""

import importlib.util
import itertools
import os
import re
import shlex
import stat
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from patches import originals
from patches.errors import AGAIN, Exit, PatchError
from patches.series import PACKAGE, Series, known_versions, sha256

STATES = {  # state name -> exit code of `status`
    "applied": Exit.OK,
    "pristine": Exit.PRISTINE,
    "drifted": Exit.DRIFTED,
    "edited": Exit.EDITED,
}
EDITED = ("edited", "missing", "stray")
EARLIER = "of an earlier release"


def find_installed() -> Path | None:
    """Return the `openrlhf` package that the running Python would import, without importing it."""
    spec = importlib.util.find_spec(PACKAGE)
    return Path(spec.origin).parent if spec and spec.origin else None


def find_target() -> Path:
    """Return the installed `openrlhf` package. Raises MISSING."""
    if target := find_installed():
        return target
    message = f"OpenRLHF is not installed in {sys.prefix}"
    raise PatchError(Exit.MISSING, message, "scripts/setup.sh, or ./apply_patches.sh --target DIR/openrlhf")


def check_target(target: Path) -> Path:
    """Return the absolute path of a package directory. Raises if it is absent, of another name, or a symbolic link."""
    target = Path(os.path.abspath(target))
    if target.is_symlink():
        real = target.resolve()
        message = f"{target} is a symbolic link; patching it would change {real}"
        raise PatchError(Exit.UNSAFE_FILE, message, f"./apply_patches.sh --target {shlex.quote(str(real))}")
    # With the hashes alone, every file of another package would be a hand edit, to be replaced by one of OpenRLHF's.
    is_package = (target / "__init__.py").is_file()
    if not is_package or target.name != PACKAGE:
        reason = f"its name is not {PACKAGE}" if is_package else "__init__.py is missing"
        message = f"{target} is not an OpenRLHF package: {reason}"
        raise PatchError(Exit.MISSING, message, "./apply_patches.sh --target DIR/openrlhf")
    return target


def dist_info(target: Path, version: str) -> Path:
    return target.parent / f"{PACKAGE}-{version}.dist-info"


def _recorded_versions(target: Path) -> list[str]:
    """Return the versions in the dist-info METADATA next to the package."""
    files = target.parent.glob(f"{PACKAGE}-*.dist-info/METADATA")
    found = (re.search(r"^Version: *(\S+)", file.read_text("utf-8", "replace"), re.MULTILINE) for file in files)
    return sorted({match[1] for match in found if match})


def refuse_another_version(target: Path, version: str) -> None:
    """Refuse a version that the user names although the package is of another one that has patches."""
    recorded = _recorded_versions(target)
    if len(recorded) == 1 and recorded != [version] and recorded[0] in known_versions():
        message = f"{target} is OpenRLHF {recorded[0]}, not {version}; scripts/setup.sh installs another version"
        raise PatchError(Exit.UNKNOWN_VERSION, message, next_command(target, recorded[0], "status"))


def installed_version(target: Path) -> str:
    """Return OpenRLHF's version from the dist-info METADATA next to the package."""
    versions = _recorded_versions(target)
    if len(versions) == 1:
        return versions[0]
    if versions:
        message = f"several versions ({', '.join(versions)}) of OpenRLHF are recorded in {target.parent}"
        raise PatchError(Exit.UNKNOWN_VERSION, message, "./apply_patches.sh status --version VERSION")
    raise _no_version(target)


def _no_version(target: Path) -> PatchError:
    """Say why there is no dist-info next to a package: a checkout on the path, an editable install, a copy."""
    message = f"there is no {PACKAGE}-*.dist-info with a version next to {target}"
    if str(target.parent) in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        message += f": PYTHONPATH names {target.parent}, and that package hides the installed one"
        return PatchError(Exit.UNKNOWN_VERSION, message, f"unset PYTHONPATH && {AGAIN}")
    finders = Path(sys.prefix).glob(f"lib/python*/site-packages/{PACKAGE}-*.dist-info/direct_url.json")
    if any('"editable"' in path.read_text() for path in finders):
        message += ": it is an editable install, whose files belong to a checkout; install the wheel instead"
        return PatchError(Exit.UNKNOWN_VERSION, message, "scripts/setup.sh")
    return PatchError(Exit.UNKNOWN_VERSION, message, next_command(target, "VERSION", "status"))


def next_command(target: Path, version: str, words: str) -> str:
    """Return the command to type for this target, with flags wherever the defaults would be wrong."""
    flags = "" if target == find_installed() else f" --target {shlex.quote(str(target))}"
    if list(target.parent.glob(f"{PACKAGE}-*.dist-info")) != [dist_info(target, version)]:
        flags += f" --version {version}"
    return f"./apply_patches.sh {words}{flags}"


def locate(target: Path, path: str) -> Path:
    """Return the location of `openrlhf/...` in the target. Raises UNSAFE_FILE at a symbolic link on the way."""
    file = target
    for part in path.split("/")[1:]:
        file = file / part
        if file.is_symlink():
            message = f"{file} is a symbolic link to {os.readlink(file)}; patches never follow one"
            wheel = f"{PACKAGE}=={installed_version(target)}"
            remedy = f"reinstall without links: uv pip install --link-mode copy --reinstall --no-deps {wheel}"
            raise PatchError(Exit.UNSAFE_FILE, message, remedy)
    return file


def read_file(file: Path) -> bytes | None:
    """Return the bytes of a regular file, None if it is absent."""
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            raise PatchError(Exit.UNSAFE_FILE, f"{file} is not a regular file")
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_installed(target: Path, path: str) -> bytes | None:
    """Return the bytes of `openrlhf/...` in the target, None if it is absent."""
    return read_file(locate(target, path))


def scan(target: Path) -> dict[str, str]:
    """Return the sha256 of every file of the package; Python's bytecode folders are left out."""
    digests = {}
    for folder, folders, names in os.walk(target):
        folders[:] = [name for name in folders if name != "__pycache__"]
        inside = Path(folder).relative_to(target.parent)
        for name in [*names, *(name for name in folders if Path(folder, name).is_symlink())]:
            path = (inside / name).as_posix()
            if (digest := sha256(read_installed(target, path))) is not None:
                digests[path] = digest
    return dict(sorted(digests.items()))


def digest(target: str | os.PathLike[str], version: str | None = None) -> str:
    """Return one sha256 over all files of the installed package (plus version, series).

    It equals `expected_digest(version)` exactly if all patches are applied and nothing else changed the package.
    Imports neither OpenRLHF nor anything heavy; `target` is the `openrlhf` directory. Raises PatchError if there is no
    OpenRLHF, or no patches for its version.
    """
    package = check_target(Path(target))
    return Series.load(version or installed_version(package)).digest(scan(package))


def expected_digest(version: str) -> str:
    """Return the digest of a fully patched OpenRLHF of this version."""
    series = Series.load(version)
    return series.digest(series.list_expected())


@dataclass(frozen=True)
class FileRecord:
    """A file that the series touches, or that is not as it must be. Hashes are None for an absent file."""

    path: str
    state: str  # applied, pristine, of an earlier release, edited, missing or stray
    installed: str | None
    expected: str | None

    @property
    def is_edited(self) -> bool:
        return self.state in EDITED


@dataclass(frozen=True)
class Status:
    """What `status` reports; `state` is one of STATES, `next` the command to type."""

    state: str
    target: str
    version: str
    message: str
    next: str
    digest: str
    expected_digest: str
    files: list[FileRecord] = field(default_factory=list)

    @property
    def code(self) -> Exit:
        return STATES[self.state]

    def as_json(self) -> dict:
        return asdict(self) | {"code": int(self.code)}


def inspect(target: Path, series: Series) -> Status:
    """Derive the state of an installed package from the hashes of its files."""
    installed, expected = scan(target), series.list_expected()
    recorded = originals.read_record(originals.record(target, series.version))
    states = {}
    for path in sorted(installed.keys() | series.pristine.keys() | expected.keys()):
        now = installed.get(path)
        is_left = recorded is not None and now == recorded.get(path)
        if now == expected.get(path):
            states[path] = "applied"
        elif now == series.pristine.get(path):
            states[path] = "pristine"
        elif is_left or (path in series.patched and originals.read_text(target, now) is not None):
            states[path] = EARLIER
        elif now is None:
            states[path] = "missing"
        else:
            states[path] = "edited" if path in expected or path in series.pristine else "stray"
    advice = next_command(target, series.version, "apply")
    if edited := [path for path, state in states.items() if state in EDITED]:
        state, message = "edited", f"{len(edited)} file(s) edited by hand: {', '.join(edited)}"
        # It saves the edits before it replaces the files.
        free = next(name for n in itertools.count(1) if not Path(name := f"hand-edits-{n}.patch").exists())
        advice = next_command(target, series.version, f"apply --edits-to {free}")
    elif EARLIER in states.values():
        state, message = "drifted", "some files are as another release of the patches left them"
    elif installed == series.pristine:
        state, message = "pristine", "not patched"
    elif installed != expected:
        state, message = "drifted", "some files are patched, and some are not"
    elif recorded not in (None, expected):
        state, message = "drifted", "patched, but RECORD does not list the files as they are"
    else:
        state, message, advice = "applied", f"applied {len(series.patches)} of {len(series.patches)}", ""
    return Status(
        state=state,
        target=str(target),
        version=series.version,
        message=message,
        next=advice,
        digest=series.digest(installed),
        expected_digest=series.digest(expected),
        files=[
            FileRecord(path, state, installed.get(path), expected.get(path))
            for path, state in states.items()
            if path in series.patched or state not in ("applied", "pristine")
        ],
    )
