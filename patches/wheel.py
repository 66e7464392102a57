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
    """A version's package files (`openrlhf/...`) and what it requires (name -> specifier)."""

    version: str
    tree: Tree
    requires: dict[str, str]

    @classmethod
    def of(cls, version: str, tree: Tree, metadata: str) -> "Wheel":
        """Return a wheel of this text of METADATA."""
        lines = re.findall(r"^Requires-Dist: *([\w.-]+)(?:\[[^]]*\])? *([^;\n]*)", metadata, re.MULTILINE)
        return cls(version, tree, {name.lower(): specifier.strip("() ") for name, specifier in reversed(lines)})


def order(version: str) -> list[int]:
    """Return the key by which versions sort."""
    return [int(part) for part in re.findall(r"\d+", version)]


def read_wheel(path: Path, version: str | None = None) -> Wheel:
    """Read a wheel, or the one of this version in a folder. Raises NO_WHEEL, also if it is of another version."""
    if path.is_dir():
        wheels = sorted(path.glob(f"{PACKAGE}-{version or '*'}-*.whl"))
        if not wheels:
            raise PatchError(Exit.NO_WHEEL, f"{path} has no wheel of {PACKAGE} {version or ''}".rstrip())
        path = wheels[0]  # those for other Pythons hold the same files
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            metadata = archive.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
            tree = {}
            for name in names:
                inside = name.split("/")
                if inside[0].endswith(".data") and inside[1] in ("purelib", "platlib"):
                    inside = inside[2:]
                if inside[0] == PACKAGE:
                    tree["/".join(inside)] = archive.read(name)
        named = re.search(r"^Version: *(\S+)", metadata, re.MULTILINE)
        if not named or not tree:
            raise ValueError("it has no version, or no package")
    except (OSError, ValueError, zipfile.BadZipFile, StopIteration) as error:
        raise PatchError(Exit.NO_WHEEL, f"{path} is not a readable {PACKAGE} wheel: {error!r}") from error
    if version is not None and named[1] != version:
        raise PatchError(Exit.NO_WHEEL, f"{path} is {PACKAGE} {named[1]}, not {version}")
    return Wheel.of(named[1], tree, metadata)


def _pip() -> list[str]:
    if importlib.util.find_spec("pip") or not shutil.which("uv"):
        return [sys.executable, "-m", "pip"]
    return ["uv", "tool", "run", "--python", sys.executable, "pip"]  # `uv venv` makes environments without pip


def _download(version: str, to: str) -> list[str]:
    return [*_pip(), "download", "--no-deps", "--only-binary=:all:", "--dest", to, f"{PACKAGE}=={version}"]


def with_download(version: str, flag: str) -> str:
    """Return the command to type that fetches a wheel and gives it to the command that failed."""
    return f"{shlex.join(_download(version, 'wheels'))} && {AGAIN} {flag} wheels"


def download(version: str, flag: str = "--wheel") -> Wheel:
    """Fetch the wheel of a version. Raises NO_WHEEL if it cannot; `flag` gives a wheel to the present command."""
    with tempfile.TemporaryDirectory(prefix="openrlhf-wheel-") as folder:
        command = [*_download(version, folder), "--quiet", "--disable-pip-version-check"]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if not done.returncode:
            return read_wheel(Path(folder), version)
    reason = "\n".join((done.stderr or done.stdout).strip().splitlines()[-3:])
    message = f"could not download {PACKAGE} {version} (another machine may reach the index):\n{reason}"
    raise PatchError(Exit.NO_WHEEL, message, with_download(version, flag))


def released_after(version: str) -> list[str]:
    """Return the versions that the package index has after this one, oldest first."""
    command = [*_pip(), "index", "versions", PACKAGE, "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    listed = re.search(r"^Available versions: (.*)", done.stdout, re.MULTILINE)
    if not listed:
        message = f"cannot list the versions of {PACKAGE}:\n{done.stderr.strip()}"
        raise PatchError(Exit.NO_WHEEL, message, shlex.join(command))
    return sorted((each for each in listed[1].split(", ") if order(each) > order(version)), key=order)
