"""What the code knows by name: variables, and metrics and other words in small letters."""

import re
from functools import cache

from grpo.metric_schema import BY_NAME
from tests.docs.pages import ROOT

READ_BY_PACKAGES = {"CUDA_HOME", "HTTPS_PROXY", "ALL_PROXY"}  # by torch and by Python's own urllib
FOLDERS = ("data", "eval", "grpo", "patches", "reward", "scripts")


@cache
def sources() -> str:
    """All code but the tests."""
    files = [file for folder in FOLDERS for end in ("py", "sh") for file in sorted((ROOT / folder).rglob(f"*.{end}"))]
    return "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "train_grpo.sh", *files))


def is_variable(name: str) -> bool:
    """Tell whether a variable has its default in train_grpo.sh, or is read by name in the code or by a package.

    GRPO_NAME is what train_grpo.sh exports of NAME.
    """
    script = (ROOT / "train_grpo.sh").read_text(encoding="utf-8")
    in_shell = re.search(rf'"\$\{{{name}:?=', script) or re.search(rf"\$\{{?{name}\b", sources())
    return bool(name in READ_BY_PACKAGES or in_shell or re.search(rf"""["']{name}["']""", sources()))


def is_name(name: str) -> bool:
    """Tell whether a name in small letters is a metric, a file of the series, a word of a flag, or quoted in code."""
    if name in BY_NAME or (ROOT / "patches" / "openrlhf-0.9.3" / f"{name}.patch").is_file():
        return True
    word = re.escape(name)
    return bool(re.search(rf"""["'/]{word}(?:\.[a-z]+)?["']|\bdef {word}\(|\b{word}\.(?:py|sh)""", sources())) or any(
        (ROOT / folder / f"{name}.py").is_file() for folder in FOLDERS
    )
