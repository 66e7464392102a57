"""The variables that the code, or a package that it uses, reads."""

import re
from functools import cache

from tests.docs.pages import ROOT

# torch, urllib, W&B, openai-harmony
READ_BY_PACKAGES = {"CUDA_HOME", "HTTPS_PROXY", "ALL_PROXY", "WANDB_API_KEY", "WANDB_MODE", "TIKTOKEN_ENCODINGS_BASE"}
FOLDERS = ("data", "eval", "grpo", "patches", "reward", "scripts", "benchmarks")


@cache
def _find_variables() -> set[str]:
    files = [file for folder in FOLDERS for end in ("py", "sh") for file in sorted((ROOT / folder).rglob(f"*.{end}"))]
    code = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "train_grpo.sh", *files))
    return READ_BY_PACKAGES.union(
        re.findall(r"\$\{?([A-Z]\w+)", code), re.findall(r"""["']([A-Z][A-Z0-9_]+)["']""", code)
    )


def is_variable(name: str) -> bool:
    """Tell whether a variable has its default in train_grpo.sh, or is read by name in the code or by a package."""
    return name in _find_variables()
