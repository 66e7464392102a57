"""Imports of user files: a module in a file's own folder comes before another one of its name.

One process holds our packages, the files of several folders, and their imports, some of which are made in threads, when
a reward is called. So sys.path and sys.modules cannot decide what `import data` means; the folder of the importing file
does. If Python would find another module of that name first, the folder's is loaded under the name of a package that
stands for the folder.
"""

import builtins
import functools
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

_CHECKOUT = Path(__file__).resolve().parents[1]
_STANDS_FOR = "beside "  # begins the name of the package that stands for a folder, so errors say where Python looked

_python_import = builtins.__import__
_folders = [_CHECKOUT]


def add(folder: Path) -> None:
    """Let the files of a folder find its modules first; all other files find them last."""
    folder = folder.resolve()
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    if folder not in _folders:
        _folders.append(folder)
        _find_folder.cache_clear()
        package = sys.modules[_package(folder)] = ModuleType(_package(folder))
        package.__path__ = [str(folder)]
        builtins.__import__ = _import


def remedy(error: BaseException) -> str:
    """Return the remedy of a user file that cannot be imported: something in its folder may hide a package of ours."""
    package, _, rest = ((error.name or "") if isinstance(error, ImportError) else "").partition(".")
    name = rest.partition(".")[0]
    hiding = [folder / name for folder in _folders if _package(folder) == package and _is_module(_CHECKOUT, name)]
    return "correct the file" + (f", or rename {hiding[0]}, which hides this project's {name}" if hiding else "")


def _package(folder: Path) -> str:
    return _STANDS_FOR + str(folder).replace(".", "_")


@functools.cache
def _find_folder(file: str) -> tuple[Path, Path]:
    """Return the innermost of our folders that has a file, or the checkout for any other, and the file's own place."""
    place = Path(file).absolute().parent.resolve() / Path(file).name
    holders = filter(place.is_relative_to, _folders)
    return max(holders, key=lambda folder: len(folder.parts), default=_CHECKOUT), place


def _is_module(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or any((folder / name).glob("*.py"))


def _holds(folder: Path, name: str, fromlist: Sequence[str] | None) -> bool:
    """Return whether an import is of a folder's module. Only one with __init__.py hides all modules of a package."""
    top, *rest = name.split(".")
    if (folder / top / "__init__.py").is_file() or (not rest and (folder / f"{top}.py").is_file()):
        return True
    return any(_is_module(folder / top, part) for part in rest[:1] or fromlist or ())


def _import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> ModuleType:
    """Import as Python does, but for a file of a user's folder take the folder's own module."""
    top, file = name.partition(".")[0], (globals or {}).get("__file__")
    folder, place = _find_folder(file) if file and level == 0 else (_CHECKOUT, _CHECKOUT)
    if folder != _CHECKOUT and place != folder / f"{top}.py" and _holds(folder, name, fromlist):
        first = find_spec(top)
        found = [first.origin, *(first.submodule_search_locations or ())] if first else []
        if not any(path and Path(path).parent == folder for path in found):
            module = _python_import(f"{_package(folder)}.{name}", globals, locals, fromlist, 0)
            return module if fromlist else sys.modules[f"{_package(folder)}.{top}"]
    return _python_import(name, globals, locals, fromlist, level)
