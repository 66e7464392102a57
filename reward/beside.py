"""Imports of user files: a module in a file's own folder comes before another one of its name.

One process holds our packages, the files of several folders, and their imports, some of which are made in threads, when
a reward is called. So sys.path and sys.modules cannot decide what `import data` means; the folder of the importing file
does. Where names collide, the folder's module is loaded under the name of a package that stands for the folder.
"""

import builtins
import contextlib
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

_CHECKOUT = Path(__file__).resolve().parents[1]
_OURS = ("benchmarks", "data", "eval", "grpo", "patches", "reward", "scripts", "tests")
_STANDS_FOR = "beside "  # begins the name of the package that stands for a folder, so errors say where Python looked

_python_import = builtins.__import__
_folders: dict[Path, set[str]] = {_CHECKOUT: set()}  # the modules of a folder whose names another place has, too
_names: set[str] = set()  # these of all folders


@contextlib.contextmanager
def first_on_path(folder: Path) -> Iterator[None]:
    """Look for modules in a folder first. Afterwards it comes last, except for names that others have, too."""
    folder = folder.resolve()
    others = [entry.stem for other in _folders if other not in (folder, _CHECKOUT) for entry in other.glob("*")]
    if folder != _CHECKOUT:
        _folders[folder] = {name for name in {*_OURS, *others} if _is_module(folder, name)}
        _names.update(_folders[folder])
        for name in _folders[folder].intersection(_OURS):  # what imports these by sys.path must not find the folder's
            import_module(name)
        package = sys.modules.setdefault(_package(folder), ModuleType(_package(folder)))
        package.__path__ = [str(folder)]
        if _folders[folder]:
            builtins.__import__ = _import
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def remedy(error: BaseException) -> str:
    """Return the remedy of a user file that cannot be imported: something in its folder may hide a package of ours."""
    package, _, rest = ((error.name or "") if isinstance(error, ImportError) else "").partition(".")
    name = rest.partition(".")[0]
    hiding = [folder / name for folder in _folders if _package(folder) == package and name in _OURS]
    return "correct the file" + (f", or rename {hiding[0]}, which hides this project's {name}" if hiding else "")


def _is_module(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or any((folder / name).glob("*.py"))


def _holds(folder: Path, name: str, fromlist: Sequence[str] | None) -> bool:
    """Return whether an import is of a folder's module. Only one with __init__.py hides all modules of a package."""
    top, *rest = name.split(".")
    if (folder / top / "__init__.py").is_file() or (not rest and (folder / f"{top}.py").is_file()):
        return True
    return any(_is_module(folder / top, part) for part in rest[:1] or fromlist or ())


def _package(folder: Path) -> str:
    return _STANDS_FOR + str(folder).replace(".", "_")


def _import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> ModuleType:
    """Import as Python does, but for a file of a user's folder take the folder's own module."""
    top = name.partition(".")[0]
    if level == 0 and top in _names and (file := (globals or {}).get("__file__")):
        place = Path(file).absolute().parent.resolve() / Path(file).name
        holders = [folder for folder in list(_folders) if place.is_relative_to(folder)]
        folder = max(holders, key=lambda folder: len(folder.parts), default=_CHECKOUT)
        if top in _folders[folder] and place != folder / f"{top}.py" and _holds(folder, name, fromlist):
            package = _package(folder)
            module = _python_import(f"{package}.{name}", globals, locals, fromlist, 0)
            return module if fromlist else sys.modules[f"{package}.{top}"]
    return _python_import(name, globals, locals, fromlist, level)
