"""OpenRLHF without our patches."""

import importlib
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from patches import originals
from patches.package import find_target

ROOT = Path(__file__).parents[2]


def copy_pristine(target: Path) -> Path:
    """Copy the installed package to `target` and remove all patches; returns `target`."""
    shutil.copytree(find_target(), target, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(originals.folder(find_target()), originals.folder(target))
    command = [sys.executable, "-m", "patches", "revert", "--target", str(target)]
    command += ["--version", importlib.metadata.version("openrlhf")]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return target


def load(package: str | Path | None, name: str) -> ModuleType:
    """Put `openrlhf.NAME` from the folder `package` into `sys.modules`; return it. None is the installed, patched one.

    Its imports come from the installed package.
    """
    importlib.import_module(f"openrlhf.{name}")  # its imports, in the order that resolves their cycle
    file = Path(package or find_target(), *name.split(".")).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(f"openrlhf.{name}", file)
    assert spec and spec.loader
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
