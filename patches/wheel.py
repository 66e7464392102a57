"""Pristine OpenRLHF from a wheel: read its package, or download it with pip."""

import subprocess
import sys
import zipfile
from pathlib import Path

from patches.errors import Exit, PatchError
from patches.manifest import PACKAGE
from patches.series import Tree


def read_wheel(path: Path, version: str | None = None) -> tuple[str, Tree]:
    """Return version and files (`openrlhf/...`) of a wheel. Raises NO_WHEEL, also if it is of another version."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
            lines = archive.read(metadata).decode().splitlines()
            named_version = next(line for line in lines if line.startswith("Version:")).removeprefix("Version:").strip()
            tree = {}
            for name in names:
                inside = name.split("/")
                if inside[0].endswith(".data") and inside[1] in ("purelib", "platlib"):
                    inside = inside[2:]
                if inside[0] == PACKAGE:
                    tree["/".join(inside)] = archive.read(name)
    except (OSError, zipfile.BadZipFile, StopIteration) as error:
        raise PatchError(Exit.NO_WHEEL, f"{path} is not a readable {PACKAGE} wheel: {error!r}") from error
    if not tree:
        raise PatchError(Exit.NO_WHEEL, f"{path} does not contain {PACKAGE}")
    if version is not None and named_version != version:
        raise PatchError(Exit.NO_WHEEL, f"{path} is {PACKAGE} {named_version}, not {version}")
    return named_version, tree


def download(version: str, scratch: Path) -> Path:
    """Fetch the wheel of a version with the running Python's pip. Raises NO_WHEEL if it cannot."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(scratch), f"{PACKAGE}=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr or done.stdout).strip().splitlines()[-3:]
        message = f"could not download {PACKAGE} {version} with {sys.executable} -m pip:\n" + "\n".join(reason)
        remedy = f"fetch the wheel elsewhere (pip download --no-deps {PACKAGE}=={version}), then pass its file"
        raise PatchError(Exit.NO_WHEEL, message, remedy)
    return wheels[0]
