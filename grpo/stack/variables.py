"""The settings of `train_grpo.sh`, and which flag of OpenRLHF each sets, read from the script itself."""

import re
from functools import cache

from grpo.stack.checkout import CHECKOUT

_VALUE = re.compile(r'--(\w+) "\$\{?(\w+)(?:\[@\])?\}?"')
_LIST = re.compile(r'read -ra (\w+) <<<"\$(\w+)"')
_COPY = re.compile(r'^(\w+)="\$(\w+)"$', re.MULTILINE)
_SWITCH = re.compile(r"if \[\[ \$(\w+) == 1 \]\]; then\s+\w+\+=\(--(\w+)[ )]")
_DEFAULT = re.compile(r'"\$\{(\w+):?=((?:[^{}]|\{[^}]*\})*)\}"')
_FLAG = re.compile(r"--(\w+)")
# A remedy: "add --flag" or "use --flag value"
_REMEDY = re.compile(r"\b(?:add|use) --(\w+)(?: ([\w.]+)(?=,|$))?")


@cache
def by_flag() -> dict[str, str]:
    """Return the variable that sets each flag: {"lora_rank": "LORA_RANK", "offload": "OFFLOAD", ...}."""
    script = (CHECKOUT / "train_grpo.sh").read_text(encoding="utf-8").partition("# --- Run ---")[0]
    settings = dict(_LIST.findall(script) + _COPY.findall(script))
    values = {flag: settings.get(variable, variable) for flag, variable in _VALUE.findall(script)}
    return values | switches()


@cache
def switches() -> dict[str, str]:
    """Return the variable that is 1 or 0 for each flag without a value: {"offload": "OFFLOAD", ...}."""
    script = (CHECKOUT / "train_grpo.sh").read_text(encoding="utf-8").partition("# --- Run ---")[0]
    return {flag: variable for variable, flag in _SWITCH.findall(script)}


@cache
def defaults(is_tiny: bool) -> dict[str, str]:
    """Return the settings of the script with their defaults, as they are written there.

    Args:
        is_tiny: whether those of `--tiny` come first.
    """
    script = (CHECKOUT / "train_grpo.sh").read_text(encoding="utf-8")
    tiny, _, recipe = script.partition("# --- The tiny run")[2].partition("# --- Hyperparameters ")
    values = dict(_DEFAULT.findall(recipe))
    return values | dict(_DEFAULT.findall(tiny)) if is_tiny else values


def in_variables(text: str) -> str:
    """Return a message with flags replaced by the user's variables that set them."""
    return _FLAG.sub(lambda match: by_flag().get(match[1], match[0]), _REMEDY.sub(_setting, text))


def _setting(remedy: re.Match[str]) -> str:
    flag, value = remedy[1], remedy[2] or ("1" if remedy[1] in switches() else "")
    if flag not in by_flag():
        return remedy[0]
    return f"set {by_flag()[flag]}" + (f"={value}" if value else "")
