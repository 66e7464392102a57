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
from typing import Any, NamedTuple

from grpo.environments.conversation import play
from grpo.environments.environment import BuiltInTool, Environment, Message, SetupError
from grpo.environments.loading import load
from grpo.environments.mixture import SINGLE
from grpo.environments.settings import EnvironmentSettings, RolloutLimits, has_environment
from grpo.launch.checks.model import has_chat_template
from grpo.launch.checks.own_code import DEADLINE, NoAnswerError, call_apart
from grpo.launch.config import Config
from grpo.rollout import chat_template
from grpo.stack.json_files import numbered_rows
from grpo.stack.problem import Problem, UserError
from reward.labels import LabelError, parse_label
from reward.trial import locate_error

# Made up from the type of an argument's schema
_VALUES: dict[str, Any] = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
_MISTAKES = (AttributeError, NameError, ImportError, TypeError, NotImplementedError)  # of the code, not the arguments


def check_environment(config: Config) -> Iterator[Problem]:
    """Load the environments, run their own checks, and read which problems are for each of them.

    In a .py file of the user's, one conversation is played, see :class:`_Trial`.
    """
    if not has_environment(config.args):
        return
    args = config.args
    try:
        settings = EnvironmentSettings.from_variables(os.environ)
        for member in settings.mixture.members:
            yield from _inspect(member.source, Path(args.pretrain))
        for file in (args.prompt_data, args.eval_dataset):
            if file and Path(file).is_file():
                _check_labels(Path(file), settings.mixture.assign_file(Path(file), args.input_key), args)
        for source, played in _play_files(settings, args):
            if played.fault:
                yield Problem(
                    f"ENVIRONMENT {source} fails on the first line of TRAIN_DATA that is for it: {played.fault}",
                    "correct the file, or raise ToolError for arguments that a tool does not take",
                )
    except UserError as error:
        yield Problem(error.problem.what, error.problem.remedy or "fix what the check() of the environment reports")


def describe(config: Config) -> list[str]:
    """Describe in lines for people what was played in each .py file, after :func:`check_environment` passed."""
    if not has_environment(config.args):
        return []
    lines = []
    for source, played in _play_files(EnvironmentSettings.from_variables(os.environ), config.args):
        lines.append(f"played      {Path(source).name}: {played.line}")
        if played.error:
            lines.append(
                f"WARNING: {played.error}. The model reads only that the tool failed; raise ToolError to say why"
            )
    return lines


def _inspect(source: str, folder: Path) -> Iterator[Problem]:
    """Load an environment and run its own check, apart; refuse tools of which the model would never learn.

    Tools that only an instance knows are not checked.
    """

    def look() -> list[str]:
        kind = load(source)
        kind.check()
        tools = kind.tools if isinstance(kind.tools, Sequence) else ()
        return sorted({"builtin_tools" if isinstance(tool, BuiltInTool) else "tools" for tool in tools})

    try:
        names = call_apart(look)
    except NoAnswerError as error:
        raise UserError(f"ENVIRONMENT {source} {error.problem.what}", error.problem.remedy) from None
    if has_chat_template(folder):  # another check reports its absence
        for name in chat_template.find_unread(folder, names):
            yield Problem(
                f"the chat template of {folder} does not read {name}, so the model would not know {source}'s tools",
                "use the chat_template.jinja that comes with gpt-oss, or an environment without these tools",
            )


def _check_labels(file: Path, environments: Mapping[str, str], args: Namespace) -> None:
    """Raise SetupError for the first label of a single answer that cannot be read."""
    for number, row in numbered_rows(file):
        if isinstance(row, dict) and environments.get(str(row.get(args.input_key))) == SINGLE:
            try:
                parse_label(row.get(args.label_key))
            except LabelError as error:
                raise SetupError(f"{file}, line {number} is for single answers: {error.what}", error.remedy) from None


class _Played(NamedTuple):
    """A conversation: what was said, what a tool raised, and what is wrong with the environment; "" for nothing."""

    line: str
    error: str
    fault: str


def _play_files(settings: EnvironmentSettings, args: Namespace) -> Iterator[tuple[str, _Played]]:
    """Play a conversation in each .py file, on the first problem that is for it."""
    train = Path(args.prompt_data or "")
    if not train.is_file():
        return  # another check reports it
    assigned = settings.mixture.assign_file(train, args.input_key)
    rows = [row for _, row in numbered_rows(train) if isinstance(row, dict)]
    for member in settings.mixture.members:
        own = (row for row in rows if assigned.get(str(row.get(args.input_key))) == member.name)
        if member.source.endswith(".py") and (row := next(own, None)):
            prompt, label = (json.dumps(row.get(key)) for key in (args.input_key, args.label_key))
            yield member.source, _play_apart(member.source, prompt, label, settings.limits)


@functools.cache  # a restart repeats the checks
def _play_apart(source: str, prompt: str, label: str, limits: RolloutLimits) -> _Played:
    try:
        deadline = DEADLINE + limits.tool_seconds + limits.score_seconds
        return _Played(*call_apart(lambda: _play(source, prompt, label, limits), deadline))
    except UserError as error:
        return _Played("", "", error.problem.what)


def _play(source: str, prompt: str, label: str, limits: RolloutLimits) -> _Played:
    kind, trial = load(source), _Trial()
    make = functools.partial(kind, json.loads(prompt), json.loads(label))
    outcome, score = asyncio.run(play(make, trial, replace(limits, turns=min(2, limits.turns))))
    said, error, fault = f'answer "1" -> reward {score.reward:g}, score {score.score:g}', "", outcome.fault
    if trial.called:
        failed = " (the call failed, so what it returns is unchecked)" if outcome.errors else ""
        said = f"{trial.called} -> {trial.heard!r:.80}{failed}, {said}"
    if outcome.tool_fault:
        error = f"the tool failed on {trial.called}: {locate_error(outcome.tool_fault, Path(source))}"
    if outcome.ending == "time":
        fault = f"it took more than {limits.seconds:g} seconds"
    elif trial.called and kind.call is Environment.call and not kind.drive:
        fault = "it has tools, but no method `call`"
    elif isinstance(outcome.tool_fault, _MISTAKES):
        fault = error
    return _Played(said, error, fault)


class _Trial:
    """A policy that calls the first tool once, with arguments made from its schema, and then answers "1".

    Attributes:
        called: the call that it made, as text; "" before.
        heard: what came back.
    """

    tokens = 0
    called = ""
    heard: Any = None

    async def respond(self, messages: list[Message], tools: list[dict[str, Any]]) -> tuple[Message, bool]:
        self.tokens += 1
        self.heard = messages[-1].get("content")
        if not tools or self.tokens > 1:
            return {"role": "assistant", "content": "1"}, False
        made: dict[str, Any] = {"code": "1"}  # of the built-in python
        if function := tools[0].get("function"):
            made = {name: _make_up(schema) for name, schema in (function["parameters"].get("properties") or {}).items()}
        called = {"name": (function or tools[0])["name"], "arguments": json.dumps(made)}
        self.called = f"{called['name']}({called['arguments']})"
        calls = [{"id": "1", "type": "function", "function": called}]
        return {"role": "assistant", "content": "", "tool_calls": calls}, False


def _make_up(schema: Any) -> Any:
    """Return an argument of a schema's type."""
    schema = schema if isinstance(schema, dict) else {}  # true allows anything
    return schema["enum"][0] if schema.get("enum") else _VALUES.get(str(schema.get("type")), "1")
