"""The installed stack has every import of our code, also those inside functions, and every module of OpenRLHF."""

import ast
import subprocess
import sys
from importlib.metadata import files
from pathlib import Path

import pytest

from .sandbox import ROOT

PACKAGES = ("data", "eval", "grpo", "patches", "reward", "scripts", "benchmarks")

# Users install these by hand, or a benchmark does elsewhere. vLLM's build for GPUs has `triton_kernels`, and names it
# so when it starts.
OPTIONAL = {
    "trackio",
    "trl",
    "triton_kernels",
    "verifiers",
    "grpo.environments.verifiers_environment",
}

# Of these, each supported OpenRLHF has one or the other.
OF_ONE_VERSION = {
    "transformers.initialization no_init_weights",
    "transformers.modeling_utils no_init_weights",
}

IMPORT = """
import importlib, sys, traceback
failed = 0
for line in sys.stdin.read().splitlines():
    module, _, name = line.partition(" ")
    try:
        value = importlib.import_module(module)
        if name and not hasattr(value, name):
            importlib.import_module(f"{module}.{name}")
    except Exception as error:
        failed = 1
        print(f"{line}: {type(error).__name__}: {error}", file=sys.stderr)
sys.exit(failed)
"""


def list_imports(file: Path) -> set[str]:
    """Return "module" and "module name" of all absolute imports in a Python file."""
    lines = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            lines |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            lines |= {f"{node.module} {alias.name}" for alias in node.names}
    return {line for line in lines if not OPTIONAL & {line.split()[0], line.split()[0].partition(".")[0]}}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_our_imports_and_all_modules_of_openrlhf_resolve():
    lines = set().union(*(list_imports(file) for package in PACKAGES for file in (ROOT / package).rglob("*.py")))
    ours = {line for line in lines if not OF_ONE_VERSION & {line, line.split()[0]}}
    modules = [path.with_suffix("") for path in files("openrlhf") or [] if path.suffix == ".py"]
    theirs = {".".join(module.parts).removesuffix(".__init__") for module in modules if module.parts[0] == "openrlhf"}
    assert ours and theirs
    text = "\n".join([*sorted(ours), *sorted(theirs)])
    run = subprocess.run([sys.executable, "-c", IMPORT], input=text, capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
