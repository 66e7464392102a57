"""What a run passes to the model's chat template besides the messages: the reasoning effort.

The controller renders prompts with the trainer's flag. An environment renders them in the engines' Ray actors, which
get the variable.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from grpo.stack.upstream.arguments import Arguments

VARIABLE = "GRPO_REASONING_EFFORT"
EFFORTS = ("low", "medium", "high")  # of gpt-oss; its template defaults to "medium"


def hand_on(args: Arguments) -> None:
    """Set the variable for the engines if ``--reasoning_effort`` is given. Called before Ray starts."""
    if args.reasoning_effort:
        os.environ[VARIABLE] = args.reasoning_effort


def variables(effort: str | None) -> dict[str, str]:
    """Return the keyword arguments of ``apply_chat_template``; {} leaves the effort to the template."""
    return {"reasoning_effort": effort} if effort else {}


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the same as :func:`variables`, for the effort that :func:`hand_on` set."""
    return variables(environ.get(VARIABLE))


def reads_effort(folder: Path) -> bool:
    """Return whether the chat template in a model's folder mentions the reasoning effort."""
    files = (folder / "chat_template.jinja", folder / "tokenizer_config.json")
    return any("reasoning_effort" in file.read_text(encoding="utf-8") for file in files if file.is_file())
