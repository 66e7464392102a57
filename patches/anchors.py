"""What the hooks of a patch rely on in OpenRLHF: functions, classes and flags, named in its header.

Relies-On: openrlhf/models/actor.py: Actor.forward; openrlhf/cli/train_ppo_ray.py: --kl_estimator, train

A class stands for all its methods, also for those that a later version adds.
"""

import ast
import difflib
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from patches.wheel import Tree


def find_anchors(patch: Path) -> list[tuple[str, str]]:
    """Return file and name of each anchor of a patch."""
    header = patch.read_text(encoding="utf-8", errors="replace")
    match = re.search(r"^Relies-On: *((?:.*)(?:\n .*)*)", header, re.MULTILINE)
    parts = [part.partition(":") for part in " ".join(match[1].split()).split(";")] if match else []
    return [(path.strip(), name.strip()) for path, _, names in parts for name in names.split(",") if name.strip()]


def source(text: bytes | None, name: str) -> str | None:
    """Return the source of a function, a class, an assigned name or an `add_argument` of a flag; None if absent."""
    node = _defined(text).get(name) if text else None
    return ast.get_source_segment(text.decode(), node) if text and node else None


@functools.cache
def _defined(text: bytes) -> dict[str, ast.AST]:
    """Return what a file defines, by its name; of several with one name, the first."""
    found: dict[str, ast.AST] = {}
    for name, node in _definitions(ast.parse(text), ""):
        found.setdefault(name, node)
    return found


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        inside = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + child.name, child
            inside = f"{prefix}{child.name}."
        elif isinstance(child, ast.Assign) and isinstance(child.targets[0], ast.Name):
            yield prefix + child.targets[0].id, child
        elif isinstance(child, ast.Call) and child.args and isinstance(child.args[0], ast.Constant):
            yield str(child.args[0].value), child  # add_argument("--flag", ...)
        yield from _definitions(child, inside)


def _find(tree: Tree, path: str, name: str) -> tuple[str | None, str | None]:
    """Return the file that has an anchor, the named one if it does, and the source; None where it is absent."""
    for file in (path, *(other for other in tree if other.endswith(".py"))):
        if text := source(tree.get(file), name):
            return file, text
    return None, None


def _parts(name: str, text: str | None) -> dict[str, str]:
    """Return the source by name: of a class each method's, and under its own name what is left; else all of it."""
    [node] = ast.parse(text).body if text else [None]
    if not text or not isinstance(node, ast.ClassDef):
        return {name: text} if text else {}
    lines, parts = text.splitlines(), {}
    for method in reversed(node.body):
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            start = min([method.lineno, *(each.lineno for each in method.decorator_list)]) - 1
            parts[f"{name}.{method.name}"] = "\n".join(lines[start : method.end_lineno])
            del lines[start : method.end_lineno]
    return {name: "\n".join(line for line in lines if line.strip())} | dict(reversed(parts.items()))


def changes(patch: Path, old: Tree, new: Tree) -> Iterator[tuple[str, str]]:
    """Yield each anchor of a patch that differs, with the difference; of a class, each method that does."""
    for path, name in find_anchors(patch):
        (was_in, before), (is_in, after) = _find(old, path, name), _find(new, path, name)
        if is_in and is_in != was_in:
            yield f"{path}: {name}", f"moved to {is_in}"
        if before and not after:
            yield f"{path}: {name}", "it is gone"
            continue
        was, now = _parts(name, before), _parts(name, after)
        for part in was | now:
            lines = difflib.unified_diff(
                was.get(part, "").splitlines(), now.get(part, "").splitlines(), n=0, lineterm=""
            )
            body = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
            if body:
                yield f"{path}: {part}", "\n".join(body) if part in now else "it is gone"
