"""The environment of a multi-turn run: its name, its library, its tools, and one conversation in a .py file.

:mod:`grpo.launch.flags` refuses conflicting flags; the trainer calls it too.
"""

import asyncio
import functools
import json
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo.environments.conversation import play
from grpo.environments.environment import SINGLE, BuiltInTool, Environment, Message, load
from grpo.environments.settings import EnvironmentSettings, RolloutLimits, has_environment, variables
from grpo.launch.checks.model import has_chat_template
from grpo.launch.checks.own_code import DEADLINE, NoAnswerError, call_apart
from grpo.launch.config import Config
from grpo.rollout import chat_template
from grpo.stack.json_files import numbered_rows
from grpo.stack.problem import Problem, UserError
from reward.answers import LabelError, parse_label
from reward.dry_run import locate_error

# Made up from the type of an argument's schema
_VALUES: dict[str, Any] = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
_MISTAKES = (AttributeError, NameError, ImportError, TypeError, NotImplementedError)  # of the code, not the arguments


def check_environment(config: Config) -> Iterator[Problem]:
    """Load the environments, run their own checks, and play in each .py file, see :class:`_FirstTool`."""
    folder = Path(config.args.pretrain)
    try:
        for source, tried in _try_all(config.args):
            # Another check reports a template's absence
            for name in chat_template.find_unread(folder, tried["tools"]) if has_chat_template(folder) else ():
                what = f"the chat template of {folder} does not read {name}: the model would not know {source}'s tools"
                yield Problem(what, "use gpt-oss's chat_template.jinja, or an environment without these tools")
            if tried["fault"]:
                what = f"ENVIRONMENT {source} fails on the first line of TRAIN_DATA that is for it: {tried['fault']}"
                yield Problem(what, "correct the file, or raise ToolError for arguments that a tool does not take")
    except UserError as error:
        yield Problem(error.problem.what, error.problem.remedy or "fix what the check() of the environment reports")


def describe(config: Config) -> list[str]:
    """Describe in lines for people what was played in each .py file, after :func:`check_environment` passed."""
    tries = ((Path(source).name, tried["line"]) for source, tried in _try_all(config.args))
    return [f"played      {name}: {line}" for name, line in tries if line]


def _try_all(args: Namespace) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each environment's source and the result of :func:`_try`. Raises UserError for wrong ones or data."""
    if not has_environment(args):
        return
    settings, given = EnvironmentSettings.from_variables(os.environ), json.dumps(variables())
    first: dict[str, str] = {}
    for file in (Path(name) for name in (args.prompt_data, args.eval_dataset) if name and Path(name).is_file()):
        assigned = settings.mixture.assign_file(file, args.input_key)
        for number, row in numbered_rows(file):
            prompt, label = (row.get(args.input_key), row.get(args.label_key)) if isinstance(row, dict) else ("", "")
            name = assigned.get(str(prompt), "")
            first.setdefault(name, json.dumps([prompt, label]))
            try:
                parse_label(label if name == SINGLE else "any")
            except LabelError as error:
                raise UserError(f"{file}, line {number} is for single answers: {error.what}", error.remedy) from None
    for member in settings.mixture.members:
        row = first.get(member.name, "") if member.source.endswith(".py") else ""
        yield member.source, _try(member.source, row, settings.limits, given)


@functools.cache  # for its problems and for its description; a restart repeats the checks
def _try(source: str, row: str, limits: RolloutLimits, given: str) -> Mapping[str, Any]:
    """Load an environment, run its own check, and play a conversation, apart.

    Args:
        given: the variables that the environment reads itself.

    Returns:
        `tools`, which the chat template must read, unless only an instance knows them; `line`, what was played, and
        `fault`, both "" without a `row`.
    """

    def look() -> dict[str, Any]:
        kind = load(source)
        kind.check()
        tools = kind.tools if isinstance(kind.tools, Sequence) else ()
        names = sorted({"builtin_tools" if isinstance(tool, BuiltInTool) else "tools" for tool in tools})
        return {"tools": names, "line": "", "fault": ""} | (_play(kind, source, row, limits) if row else {})

    try:
        return call_apart(look, DEADLINE + limits.tool_seconds + limits.score_seconds)
    except NoAnswerError as error:
        raise UserError(f"ENVIRONMENT {source} {error.problem.what}", error.problem.remedy) from None


def _play(kind: type[Environment], source: str, row: str, limits: RolloutLimits) -> dict[str, str]:
    make, policy = functools.partial(kind, *json.loads(row)), _FirstTool()
    with ThreadPoolExecutor(1) as thread:  # Ray plays outside of the main thread, where timers by signals fail
        playing = play(make, policy, replace(limits, turns=min(2, limits.turns)))
        outcome, score = thread.submit(asyncio.run, playing).result()
    line, fault = f'answer "1" -> reward {score.reward:g}, score {score.score:g}', outcome.fault
    failed = f"; the tool failed: {locate_error(outcome.tool_fault, Path(source))}" if outcome.tool_fault else ""
    if policy.called:
        line = f"{policy.called} -> {policy.heard!r:.80}{failed}, {line}"
    if outcome.ending == "time":
        fault = f"it took more than {limits.seconds:g} seconds"
    elif policy.called and kind.call is Environment.call and not kind.drive:
        fault = "it has tools, but no method `call`"
    elif isinstance(outcome.tool_fault, _MISTAKES):
        fault = f"{policy.called}{failed}"
    return {"line": line, "fault": fault}


class _FirstTool:
    """A policy that calls the first tool once, with arguments made from its schema, and then answers "1".

    Attributes:
        called: the call that it made, as text; "" before.
        heard: what came back.
    """

    tokens = 0
    called = ""
    heard: Any = None

    async def respond(self, messages: list[Message], tools: list[dict[str, Any]]) -> tuple[Message, bool]:
        self.tokens, self.heard = self.tokens + 1, messages[-1].get("content")
        if self.tokens > 1 or not tools or "function" not in tools[0]:
            return {"role": "assistant", "content": "1"}, False
        name, schema = tools[0]["function"]["name"], tools[0]["function"]["parameters"]
        made = json.dumps({key: _make_up(value) for key, value in (schema.get("properties") or {}).items()})
        self.called = f"{name}({made})"
        call = {"id": "1", "type": "function", "function": {"name": name, "arguments": made}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}, False


def _make_up(schema: Any) -> Any:
    """Return an argument of a schema's type."""
    schema = schema if isinstance(schema, dict) else {}  # true allows anything
    return schema["enum"][0] if schema.get("enum") else _VALUES.get(str(schema.get("type")), "1")
