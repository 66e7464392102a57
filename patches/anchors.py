"""What the hooks of a patch rely on in OpenRLHF: functions, classes and flags, named in its header.

Relies-On: openrlhf/models/actor.py: Actor.forward; openrlhf/cli/train_ppo_ray.py: --kl_estimator, train
"""

import ast
import difflib
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
    if text is None:
        return None
    code = text.decode()
    for known, node in _definitions(ast.parse(code), ""):
        if known == name:
            return ast.get_source_segment(code, node)
    return None


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


def changes(patch: Path, old: Tree, new: Tree) -> Iterator[tuple[str, str]]:
    """Yield each anchor of a patch that differs, with the difference."""
    for path, name in find_anchors(patch):
        before, after = source(old.get(path), name), source(new.get(path), name)
        if before == after:
            continue
        moved = [other for other in new if after is None and other.endswith(".py") and source(new[other], name)]
        if moved:
            after = source(new[moved[0]], name)
            yield f"{path}: {name}", f"moved to {', '.join(moved)}"
        lines = difflib.unified_diff((before or "").splitlines(), (after or "").splitlines(), n=0, lineterm="")
        body = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
        if body:
            yield f"{path}: {name}", "it is gone" if after is None else "\n".join(body)
