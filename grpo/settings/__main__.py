"""python -P -m grpo.settings [--page]: lists all settings, for a terminal or as docs/settings.md."""

import re
import sys
import textwrap

from grpo.settings.recipe import default
from grpo.settings.setting import Setting
from grpo.settings.table import GROUPS, SETTINGS
from grpo.stack import command

_HEAD = """# Settings

This page lists every setting of a run. You can set one in three places:

- in `train_grpo.sh`, which has the settings that change most often
- in a file of `NAME=VALUE` lines: `./train_grpo.sh --config my.env`
- in an environment variable: `LEARNING_RATE=1e-5 ./train_grpo.sh`

The file overrides `train_grpo.sh`, and a variable overrides both. A switch is 1 (on) or 0 (off). An empty variable
counts as not set, except `JUDGE_MODELS`. Where the default is empty, the text after "Empty:" applies. The last column
is the trainer's flag. `-- --flag value` at the end of the command sets a flag directly, even one of OpenRLHF's that
this page omits. `./train_grpo.sh --plan` prints what the settings mean.

`python -P -m grpo.settings --page > docs/settings.md` generates this page.
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


def main() -> int:
    """Print the page or the listing."""
    print(page() if sys.argv[1:] == ["--page"] else listing() + "\n", end="")
    return 0


if __name__ == "__main__":
    command.run(main)
