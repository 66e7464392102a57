"""Imports of the packages of `grpo/` go one way."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
# A package imports earlier packages and itself, and those that OUTSIDE lists.
ORDER = (
    *("stack", "flags", "model", "lora", "environments", "rollout", "metrics", "run"),
    *("diagnosis", "checkpoint", "train", "launch", "hooks"),
)
OUTSIDE = {
    "stack": {"patches"},  # the digest of the installed OpenRLHF
    "environments": {"reward"},  # those of ours grade answers
    "rollout": {"reward"},  # the grader's markers
    "run": {"reward"},
    "diagnosis": {"grpo.train.objectives"},  # the table of losses, which imports nothing
    "train": {"reward"},
    "launch": {"reward", "data", "patches"},
    "hooks": {"reward"},  # the driver starts the judge
}
PACKAGES = {
    "patches": set(),
    "reward": set(),
    "data": {"reward", "grpo"},
    "eval": {"reward", "grpo"},
    "scripts": {"patches", "reward", "data", "eval", "grpo", "benchmarks"},  # gpu_check
    "benchmarks": {"patches", "grpo", "scripts"},  # the tiny model and what converts checkpoints
}


def list_imports(folder: Path) -> dict[Path, set[str]]:
    """Return the modules that each file imports, at its top or inside a function."""
    imported: dict[Path, set[str]] = defaultdict(set)
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported[file] |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                imported[file] |= {alias.name for alias in node.names}
    return imported


def test_every_folder_of_grpo_is_listed_and_contains_all_modules():
    folders = {path.name for path in (ROOT / "grpo").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(ORDER)
    assert [path.name for path in (ROOT / "grpo").glob("*.py")] == ["__init__.py"]


def test_packages_of_grpo_import_only_earlier_ones():
    ours = {"grpo", *PACKAGES}
    for number, package in enumerate(ORDER):
        allowed = {f"grpo.{name}" for name in ORDER[: number + 1]} | OUTSIDE.get(package, set())
        for file, modules in list_imports(ROOT / "grpo" / package).items():
            for module in modules:
                parts = module.split(".")
                name = ".".join(parts[: 1 + (parts[0] == "grpo")])
                is_allowed = name in allowed or ".".join(parts[:3]) in allowed
                assert parts[0] not in ours or is_allowed, f"{file.relative_to(ROOT)} imports {module}"


def test_packages_import_one_way():
    for package, allowed in PACKAGES.items():
        for file, modules in list_imports(ROOT / package).items():
            names = {module.split(".")[0] for module in modules} & {"grpo", *PACKAGES}
            assert names <= allowed | {package}, f"{file.relative_to(ROOT)} imports {names - allowed - {package}}"
