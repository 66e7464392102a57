"""The environment of a multi-turn run: its name, its library, its limits.

:mod:`grpo.launch.flags` refuses conflicting flags; the trainer calls it too.
"""

import asyncio
import functools
import json
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo.launch.checks.model import has_chat_template
from grpo.launch.config import Config
from grpo.rollout import chat_template
from grpo.rollout.multi_turn.conversation import play
from grpo.rollout.multi_turn.environment import (
    BuiltInTool,
    Environment,
    Message,
    SetupError,
    functions_of,
    load,
)
from grpo.rollout.multi_turn.mixture import SINGLE
from grpo.rollout.multi_turn.settings import EnvironmentSettings, RolloutLimits, has_environment
from grpo.stack.json_files import numbered_rows
from grpo.stack.problem import Problem, UserError
from reward.labels import LabelError, parse_label


def check_environment(config: Config) -> Iterator[Problem]:
    """Load the environments, run their own checks, and read which problems are for each of them.

    In a .py file of the user's, one conversation is played.
    """
    if not has_environment(config.args):
        return
    args = config.args
    try:
        settings = EnvironmentSettings.from_variables(os.environ)
        mixture = settings.mixture
        for member in mixture.members:
            environment = load(member.source)
            environment.check()
            yield from check_tools(environment, Path(args.pretrain), member.source)
        for file in (args.prompt_data, args.eval_dataset):
            if file and Path(file).is_file():
                check_labels(Path(file), mixture.of_file(Path(file), args.input_key), args)
        yield from check_conversations(settings, args)
    except UserError as error:
        yield Problem(error.problem.what, error.problem.remedy or "fix what the check() of the environment reports")


def check_tools(environment: type[Environment], folder: Path, source: str) -> Iterator[Problem]:
    """Refuse tools that the model would never learn of. Tools that only an instance knows are not checked."""
    tools = environment.tools if isinstance(environment.tools, Sequence) else ()
    if not has_chat_template(folder):
        return  # another check reports it
    names = {"builtin_tools" if isinstance(tool, BuiltInTool) else "tools" for tool in tools}
    for name in chat_template.unread(folder, sorted(names)):
        yield Problem(
            f"the chat template of {folder} does not read {name}, so the model would not know the tools of {source}",
            "use the chat_template.jinja that comes with gpt-oss, or an environment without these tools",
        )


def check_labels(file: Path, environments: Mapping[str, str], args: Namespace) -> None:
    """Raise SetupError for the first label of a single answer that cannot be read."""
    for number, row in numbered_rows(file):
        if isinstance(row, dict) and environments.get(str(row.get(args.input_key))) == SINGLE:
            try:
                parse_label(row.get(args.label_key))
            except LabelError as error:
                raise SetupError(f"{file}, line {number} is for single answers: {error.what}", error.remedy) from None


def check_conversations(settings: EnvironmentSettings, args: Namespace) -> Iterator[Problem]:
    """Play a conversation of one tool call and an answer in each .py file, on the first problem that is for it.

    A tool may refuse its arguments, which are made up. An error in it is logged, as in a run.
    """
    train = Path(args.prompt_data or "")
    if not train.is_file():
        return  # another check reports it
    assigned = settings.mixture.of_file(train, args.input_key)
    rows = [row for _, row in numbered_rows(train) if isinstance(row, dict)]
    for member in settings.mixture.members:
        own = (row for row in rows if assigned.get(str(row.get(args.input_key))) == member.name)
        if member.source.endswith(".py") and (row := next(own, None)):
            prompt, label = (json.dumps(row.get(key)) for key in (args.input_key, args.label_key))
            if fault := _fault(member.source, prompt, label, settings.limits):
                what = f"ENVIRONMENT {member.source} fails on the first line of TRAIN_DATA that is for it: {fault}"
                yield Problem(what, "correct the file")


class _Trial:
    """A policy that calls the first tool once, with arguments made from its schema, and then answers "1"."""

    tokens = 0

    async def respond(self, messages: list[Message], tools: list[dict[str, Any]]) -> tuple[Message, bool]:
        said: Message = {"role": "assistant", "content": "1"}
        if tools and not self.tokens:
            function = functions_of(tools)[0]["function"]
            schemas = (function.get("parameters") or {}).get("properties") or {}
            arguments = json.dumps({name: _value(schema) for name, schema in schemas.items()})
            call = {"id": "1", "type": "function", "function": {"name": function["name"], "arguments": arguments}}
            said |= {"content": "", "tool_calls": [call]}
        self.tokens += 1
        return said, False


def _value(schema: dict[str, Any]) -> Any:
    values = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
    return schema["enum"][0] if schema.get("enum") else values.get(str(schema.get("type")), "1")


@functools.cache  # a restart makes the checks again and again
def _fault(source: str, prompt: str, label: str, limits: RolloutLimits) -> str:
    """Return what is wrong with an environment, as a conversation on a line of TRAIN_DATA shows; "" if nothing is."""
    kind = load(source)
    trial = replace(limits, turns=min(2, limits.turns))
    outcome, _ = asyncio.run(play(lambda: kind(json.loads(prompt), json.loads(label)), _Trial(), trial))
    if outcome.fault:
        return outcome.fault
    if outcome.ending == "time":
        return f"it took more than {limits.seconds:g} seconds"
    if outcome.calls and kind.call is Environment.call and not kind.answers_calls:
        return "it has tools, but no method `call`"
    return ""
