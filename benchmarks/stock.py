"""OpenRLHF without our patches."""

import importlib
import importlib.util
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import patches
from patches.install import Installed


def copy_pristine(target: Path) -> Path:
    """Copy OpenRLHF's own package to `target`; returns `target`."""
    original = Installed(patches.find_package(), patches.load(version("openrlhf"))).find_original()
    return Path(shutil.copytree(original, target, ignore=shutil.ignore_patterns("__pycache__")))


def load(package: str | Path | None, name: str) -> ModuleType:
    """Put `openrlhf.NAME` from the folder `package` into `sys.modules`; return it. None is the installed, patched one.

    Its imports come from the installed package.
    """
    importlib.import_module(f"openrlhf.{name}")  # its imports, in the order that resolves their cycle
    file = Path(package or patches.find_package(), *name.split(".")).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(f"openrlhf.{name}", file)
    assert spec and spec.loader
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
