"""python -P -m grpo.settings [--page]: lists all settings, for a terminal or as docs/settings.md."""

import re
import sys
import textwrap

from grpo.settings.recipe import default
from grpo.settings.setting import Setting
from grpo.settings.table import GROUPS, SETTINGS

_HEAD = """# Settings

This page lists every setting of a run. You can set one in three places:

- in `train_grpo.sh`, which has the settings that change most often
- in a file with a line for each: `./train_grpo.sh --config my.env`
- in a variable of the environment: `LEARNING_RATE=1e-5 ./train_grpo.sh`

The file wins over `train_grpo.sh`, and a variable over both. A switch is 1 (on) or 0 (off). The trainer gets the flag
in the last column. `-- --flag value` at the end of the command sets a flag directly, also one of OpenRLHF's that is not
listed here.

This page is generated: `python -P -m grpo.settings --page > docs/settings.md`.
"""
# A span of code in a text, or a variable, with a value if there is one
_VARIABLE = re.compile(rf"`[^`]*`|\b(?:{'|'.join(SETTINGS)}|[A-Z]+_[A-Z_]+)\b(?:=\w+)?")


def page() -> str:
    """Return docs/settings.md."""
    parts = [_HEAD]
    for title, group in GROUPS.items():
        parts += [f"## {title}\n", "| Setting | Default | | Flag |", "|---|---|---|---|"]
        parts += [_row(setting) for setting in group]
        parts.append("")
    return "\n".join(parts)


def _row(setting: Setting) -> str:
    value, flag = default(setting.name), f"`--{setting.flag}`" if setting.flag else ""
    about = _VARIABLE.sub(lambda match: f"`{match[0].strip('`')}`", setting.help)
    return f"| `{setting.name}` | {f'`{value}`' if value else ''} | {about} | {flag} |"


def listing() -> str:
    """Return all settings for a terminal."""
    lines: list[str] = []
    for title, group in GROUPS.items():
        lines.append(f"\n{title}:")
        for setting in group:
            value = default(setting.name)
            lines.append(f"  {setting.name}={value}")
            about = re.sub(r"\[(.*?)\]\((.*?)\)", r"docs/\2", setting.help)
            lines += textwrap.wrap(about, 112, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


if __name__ == "__main__":
    print(page() if sys.argv[1:] == ["--page"] else listing(), end="" if sys.argv[1:] == ["--page"] else "\n")
