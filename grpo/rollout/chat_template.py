"""What a run passes to the model's chat template besides the messages: the reasoning effort and other variables.

The controller renders prompts with the trainer's flags. An environment renders them in the engines' Ray actors, which
get an environment variable.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo.stack.problem import UserError
from grpo.stack.upstream.arguments import Arguments

VARIABLE = "GRPO_TEMPLATE_VARIABLES"
EFFORTS = ("low", "medium", "high")  # of gpt-oss; its template defaults to "medium"
# Set from the chat, or by REASONING_EFFORT.
_OWNED = {"messages", "conversation", "tools", "documents", "add_generation_prompt", "tokenize", "reasoning_effort"}


def hand_on(args: Arguments) -> None:
    """Set the variable for the engines. Called before Ray starts."""
    os.environ[VARIABLE] = json.dumps(variables(args.reasoning_effort, args.template_variables))


def variables(effort: str | None, others: str | None = None) -> dict[str, Any]:
    """Return the keyword arguments of ``apply_chat_template``.

    Args:
        effort: the reasoning effort; None leaves it to the template.
        others: further variables as a JSON object; None or "" for none.

    Raises:
        UserError: if `others` is no object, or names a variable that is not for users.
    """
    return parse(others) | ({"reasoning_effort": effort} if effort else {})


def parse(text: str | None) -> dict[str, Any]:
    """Return the variables of a JSON object; see :func:`variables`."""
    remedy = """write {"model_identity": "You are a mathematician."}"""
    try:
        made = json.loads(text or "{}")
    except ValueError as error:
        raise UserError(f"--template_variables {text} is no JSON ({error})", remedy) from None
    if not isinstance(made, dict):
        raise UserError(f"--template_variables {text} is no JSON object", remedy)
    for name in made:
        if name in _OWNED or not name.isidentifier():
            other = "set REASONING_EFFORT" if name == "reasoning_effort" else "remove it"
            raise UserError(f"--template_variables must not set {name!r}", other)
    return made


def from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the variables that :func:`hand_on` set."""
    return json.loads(environ.get(VARIABLE) or "{}")


def unread(folder: Path, names: Iterable[str]) -> Iterator[str]:
    """Yield the names that the chat template in a model's folder does not mention."""
    files = (folder / "chat_template.jinja", folder / "tokenizer_config.json")
    template = "".join(file.read_text(encoding="utf-8") for file in files if file.is_file())
    yield from (name for name in names if name not in template)
