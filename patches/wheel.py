"""OpenRLHF's wheels: read one, or get one from the package index."""

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from patches.errors import AGAIN, Exit, PatchError
from patches.series import PACKAGE

Tree = dict[str, bytes]  # path -> text; an absent file has no key


@dataclass(frozen=True)
class Wheel:
    """A version's package files (`openrlhf/...`), and its METADATA."""

    version: str
    tree: Tree
    metadata: str

    def requires(self) -> dict[str, str]:
        """Return the specifier of each package that the wheel requires, "any" without one."""
        lines = re.findall(r"^Requires-Dist: *([\w.-]+)(?:\[[^]]*\])? *([^;\n]*)", self.metadata, re.MULTILINE)
        return {name.lower(): specifier.strip("() ") or "any" for name, specifier in reversed(lines)}


def order(version: str) -> list[int]:
    """Return the key by which versions sort."""
    return [int(part) for part in re.findall(r"\d+", version)]


def read_wheels(paths: list[Path]) -> dict[str, Wheel]:
    """Read wheels, and those of folders; returns one for each version. Raises NO_WHEEL."""
    files = [file for path in paths for file in (sorted(path.glob(f"{PACKAGE}-*.whl")) if path.is_dir() else [path])]
    if paths and not files:
        raise PatchError(Exit.NO_WHEEL, f"{', '.join(map(str, paths))} has no wheel of {PACKAGE}")
    return {wheel.version: wheel for wheel in map(_read, files)}  # those for other Pythons hold the same files


def _read(path: Path) -> Wheel:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            metadata = archive.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
            inside = {name: re.sub(r"^[^/]*\.data/(purelib|platlib)/", "", name) for name in names}
            tree = {path: archive.read(name) for name, path in inside.items() if path.startswith(f"{PACKAGE}/")}
        named = re.search(r"^Version: *(\S+)", metadata, re.MULTILINE)
        if not named or not tree:
            raise ValueError("it has no version, or no package")
    except (OSError, ValueError, zipfile.BadZipFile, StopIteration) as error:
        raise PatchError(Exit.NO_WHEEL, f"{path} is not a readable {PACKAGE} wheel: {error!r}") from error
    return Wheel(named[1], tree, metadata)


def _pip(*words: str) -> list[str]:
    if importlib.util.find_spec("pip") or not shutil.which("uv"):
        return [sys.executable, "-m", "pip", *words]
    return ["uv", "tool", "run", "--python", sys.executable, "pip", *words]  # `uv venv` makes environments without pip


def _download(version: str, to: str) -> list[str]:
    return _pip("download", "--no-deps", "--only-binary=:all:", "--dest", to, f"{PACKAGE}=={version}")


def build_download_command(version: str) -> str:
    """Return the command to type that fetches a wheel and gives it to the command that failed."""
    return f"{shlex.join(_download(version, 'wheels'))} && {AGAIN} --wheel wheels"


def download(version: str) -> Wheel:
    """Fetch the wheel of a version. Raises NO_WHEEL if it cannot."""
    with tempfile.TemporaryDirectory(prefix="openrlhf-wheel-") as folder:
        command = [*_download(version, folder), "--quiet", "--disable-pip-version-check"]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if not done.returncode:
            return read_wheels([Path(folder)])[version]
    reason = "\n".join((done.stderr or done.stdout).strip().splitlines()[-3:])
    message = f"could not download {PACKAGE} {version} (another machine may reach the index):\n{reason}"
    raise PatchError(Exit.NO_WHEEL, message, build_download_command(version))


def list_released_after(version: str) -> list[str]:
    """Return the versions that the package index has after this one, oldest first."""
    command = _pip("index", "versions", PACKAGE, "--disable-pip-version-check")
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    listed = re.search(r"^Available versions: (.*)", done.stdout, re.MULTILINE)
    if not listed:
        message = f"cannot list the versions of {PACKAGE}:\n{done.stderr.strip()}"
        raise PatchError(Exit.NO_WHEEL, message, shlex.join(command))
    return sorted((each for each in listed[1].split(", ") if order(each) > order(version)), key=order)
