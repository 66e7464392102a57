"""The interface between OpenRLHF and `grpo/`: the patches call exactly the functions of `grpo/hooks/`."""

import ast
import importlib
import re
from collections import defaultdict
from pathlib import Path

import pytest

from grpo import hooks
from patches.series import known_versions, load

# Those that a patched file imports; flag_aliases.py is a part of train_ppo_ray.py.
MODULES = sorted(
    path.stem for path in Path(hooks.__path__[0]).glob("*.py") if path.stem not in ("__init__", "flag_aliases")
)
IMPORT = re.compile(r"\+\s*from grpo\.hooks import (\w+) as hooks\n?")


def _list_changes(version):
    """Yield patch, upstream file, and each added or removed line with its sign."""
    for patch in load(version).patches:
        file = None
        for line in patch.read_text().splitlines():
            if line.startswith("+++ b/"):
                file = line.removeprefix("+++ b/")
            elif file and line[:1] in "+-" and not line.startswith("--- a/"):
                yield patch.name, file, line


def _list_calls(version):
    """Return the hooks' module of each patched file, and the hooks that the file calls."""
    module_of, called = {}, defaultdict(set)
    for _, file, line in _list_changes(version):
        if match := IMPORT.fullmatch(line):
            module_of[file] = match[1]
        elif line.startswith("+"):
            called[file] |= set(re.findall(r"\bhooks\.(\w+)", line))
    return module_of, called


@pytest.mark.parametrize("version", known_versions())
def test_a_patched_file_calls_only_hooks_of_its_module(version):
    module_of, called = _list_calls(version)
    assert sorted(module_of.values()) == MODULES
    for file, name in module_of.items():
        assert name == ("package" if file.endswith("__init__.py") else Path(file).stem)
        module = importlib.import_module(f"grpo.hooks.{name}")
        assert not [hook for hook in called[file] if not hasattr(module, hook)], file


def test_some_version_calls_every_hook():
    called = defaultdict(set)
    for version in known_versions():
        module_of, of_version = _list_calls(version)
        for file, name in module_of.items():
            called[name] |= of_version[file]
    for name in MODULES:
        tree = ast.parse(Path(hooks.__path__[0], f"{name}.py").read_text())
        defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        defined |= {node.targets[0].id for node in tree.body if isinstance(node, ast.Assign)}
        assert defined <= called[name], name
