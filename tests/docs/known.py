"""Names that exist in the code: variables, metrics and other lowercase words."""

import re
from functools import cache

from grpo.metrics.metric_schema import BY_NAME
from tests.docs.pages import ROOT

# torch, urllib, W&B, openai-harmony
READ_BY_PACKAGES = {"CUDA_HOME", "HTTPS_PROXY", "ALL_PROXY", "WANDB_API_KEY", "WANDB_MODE", "TIKTOKEN_ENCODINGS_BASE"}
FOLDERS = ("data", "eval", "grpo", "patches", "reward", "scripts", "benchmarks")


@cache
def read_sources() -> str:
    """All code but the tests."""
    files = [file for folder in FOLDERS for end in ("py", "sh") for file in sorted((ROOT / folder).rglob(f"*.{end}"))]
    return "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "train_grpo.sh", *files))


@cache
def _find_variables() -> set[str]:
    in_shell = re.findall(r"\$\{?([A-Z]\w+)", read_sources())
    return {*READ_BY_PACKAGES, *in_shell, *re.findall(r"""["']([A-Z][A-Z0-9_]+)["']""", read_sources())}


@cache
def _find_names() -> set[str]:
    quoted = re.findall(r"""["'/]([a-z][a-z0-9_]*)(?:\.[a-z]+)?["']""", read_sources())
    files = [file.stem for folder in FOLDERS for end in ("py", "patch") for file in (ROOT / folder).rglob(f"*.{end}")]
    return {*BY_NAME, *quoted, *re.findall(r"\bdef (\w+)\(", read_sources()), *files}


def is_variable(name: str) -> bool:
    """Tell whether a variable has its default in train_grpo.sh, or is read by name in the code or by a package."""
    return name in _find_variables()


def is_name(name: str) -> bool:
    """Tell whether a name in small letters is a metric, a module, a patch, a function, or quoted in the code."""
    return name in _find_names()
