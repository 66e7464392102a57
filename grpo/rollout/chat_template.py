"""Variables that a run passes to the model's chat template: the reasoning effort, a date, and others.

The controller renders prompts with the trainer's flags. An environment renders them in the engines' Ray actors, which
get an environment variable.
"""

import datetime
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo.model.model_files import FileFault, read_json
from grpo.stack.json_files import read_bytes
from grpo.stack.problem import UserError
from grpo.stack.upstream import Arguments

VARIABLE = "GRPO_TEMPLATE_VARIABLES"
DATE = "strftime_now"  # the function with which gpt-oss's template formats the date; here, the date as text
# Set from the chat, or by a setting.
_OWNED = {"messages", "conversation", "tools", "documents", "add_generation_prompt", "tokenize"}
_STOPS = ("<|return|>", "<|call|>")
_GENERATION = "generation_config.json"
_SETTINGS = {"reasoning_effort": "set --reasoning_effort", DATE: "set --template_date"}


def pass_to_engines(args: Arguments) -> None:
    """Set the variable for the engines. Called before Ray starts."""
    os.environ[VARIABLE] = json.dumps(variables(args.reasoning_effort, args.template_variables, args.template_date))


def variables(effort: str | None, others: str | None = None, date: str | None = None) -> dict[str, Any]:
    """Return the variables of a chat template as JSON has them.

    Args:
        effort: the reasoning effort; None leaves it to the template.
        others: further variables as a JSON object; None or "" for none.
        date: the day that the template takes for today, such as 2030-01-02; None for the day on which it is rendered.

    Raises:
        UserError: if `others` is no object, or names a variable that is not for users, or `date` is no date.
    """
    if date:
        try:
            datetime.date.fromisoformat(date)
        except ValueError:
            raise UserError(f"--template_date is {date!r}", "give a date such as 2030-01-02") from None
    chosen = {"reasoning_effort": effort, DATE: date}
    return _parse(others) | {name: value for name, value in chosen.items() if value}


def arguments(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of ``apply_chat_template``: the date is a function there."""
    date = variables.get(DATE)
    return {**variables, **({DATE: datetime.date.fromisoformat(date).strftime} if date else {})}


def _parse(text: str | None) -> dict[str, Any]:
    remedy = """write {"model_identity": "You are a mathematician."}"""
    try:
        made = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise UserError(f"--template_variables {(text or '')[:200]} is not JSON ({error})", remedy) from None
    if not isinstance(made, dict):
        raise UserError(f"--template_variables {text} is not a JSON object", remedy)
    for name in made:
        if name in _OWNED or name in _SETTINGS or not name.isidentifier():
            raise UserError(f"--template_variables must not set {name!r}", _SETTINGS.get(name, "remove it"))
    return made


def from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the variables that :func:`pass_to_engines` set."""
    return json.loads(environ.get(VARIABLE) or "{}")


def find_unread(folder: Path, names: Iterable[str]) -> Iterator[str]:
    """Yield the names that the chat template in a model's folder does not mention."""
    files = (folder / "chat_template.jinja", folder / "tokenizer_config.json")
    template = "".join(read_bytes(file).decode(errors="replace") for file in files if file.is_file())
    yield from (name for name in names if name not in template)


def reads_date(folder: Path) -> bool:
    """Return whether the chat template in a model's folder reads the date; True if there is no folder yet."""
    return not folder.is_dir() or not any(find_unread(folder, [DATE]))


def find_stop_fault(folder: Path) -> FileFault | None:
    """Return what is wrong with the tokens that end a response of gpt-oss; None if it has none, or nothing is wrong.

    vLLM reads them from a file of the model. Without it, vLLM stops only at the tokenizer's own end, <|return|>, and
    samples on after a call.

    Raises:
        grpo.model.model_files.CheckpointError: for a file that is not JSON.
    """
    remedy = f"copy {_GENERATION} of the gpt-oss that the model comes from into its folder"
    if not (folder / _GENERATION).is_file():
        return FileFault(_GENERATION, f"is missing, so its engine would not stop at {_STOPS[1]}", remedy)
    stops = read_json(folder / _GENERATION).get("eos_token_id")
    stops = stops if isinstance(stops, list) else [stops]
    tokenizer = folder / "tokenizer.json"
    added = read_json(tokenizer).get("added_tokens", ()) if tokenizer.is_file() else ()
    missing = [token["content"] for token in added if token["content"] in _STOPS and token["id"] not in stops]
    if missing:
        return FileFault(_GENERATION, f"has an eos_token_id without {missing[0]}, where no engine would stop", remedy)
    return None
