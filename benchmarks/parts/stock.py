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

ROOT = Path(__file__).parents[2]


def installed() -> Path:
    """Return the folder of the installed package, which is patched."""
    spec = importlib.util.find_spec("openrlhf")
    assert spec and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def pristine(target: Path) -> Path:
    """Copy the installed package to `target` and remove all patches; returns `target`."""
    shutil.copytree(installed(), target, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(originals.folder(installed()), originals.folder(target))
    command = [sys.executable, "-m", "patches", "revert", "--target", str(target)]
    command += ["--version", importlib.metadata.version("openrlhf")]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return target


def module_from(package: Path, name: str) -> ModuleType:
    """Return a new module `openrlhf.NAME` from its file in `package`. Its imports come from the installed package.

    The caller puts it into `sys.modules`, if needed, and executes it.
    """
    importlib.import_module(f"openrlhf.{name}")  # its imports, in the order that resolves their cycle
    file = package / (name.replace(".", "/") + ".py")
    spec = importlib.util.spec_from_file_location(f"openrlhf.{name}", file)
    assert spec
    return importlib.util.module_from_spec(spec)


def execute(module: ModuleType) -> ModuleType:
    """Run the code of a module that `module_from` created."""
    assert module.__spec__ and module.__spec__.loader
    module.__spec__.loader.exec_module(module)
    return module
