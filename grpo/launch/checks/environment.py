"""The environment of a multi-turn run: its name, its library, its limits.

:mod:`grpo.launch.flags` refuses conflicting flags; the trainer calls it too.
"""

import asyncio
import functools
import json
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo.launch.checks.model import has_chat_template
from grpo.launch.checks.own_code import DEADLINE, NoAnswerError, call_apart
from grpo.launch.config import Config
from grpo.rollout import chat_template
from grpo.rollout.multi_turn.conversation import Outcome, play
from grpo.rollout.multi_turn.environment import BuiltInTool, Environment, Message, SetupError, list_functions
from grpo.rollout.multi_turn.environment_loading import load
from grpo.rollout.multi_turn.mixture import SINGLE
from grpo.rollout.multi_turn.settings import EnvironmentSettings, RolloutLimits, has_environment
from grpo.stack.json_files import numbered_rows
from grpo.stack.problem import Problem, UserError
from reward.labels import LabelError, parse_label
from reward.trial import locate_error

_TEXTS = ("1", "one", "")  # tried for texts and numbers until the tool accepts the call, then the label
_NUMBERS = (1, 2, 0, 10)
_MISTAKES = (AttributeError, NameError, ImportError, TypeError, NotImplementedError)


def check_environment(config: Config) -> Iterator[Problem]:
    """Load the environments, run their own checks, and read which problems are for each of them.

    In a .py file of the user's, one conversation is played, see :class:`_Trial`. A tool may refuse its arguments, which
    are made up. An error that no arguments explain is the environment's own.
    """
    if not has_environment(config.args):
        return
    args = config.args
    try:
        settings = EnvironmentSettings.from_variables(os.environ)
        mixture = settings.mixture
        for member in mixture.members:
            for what, remedy in _inspect(member.source, Path(args.pretrain)):
                yield Problem(what, remedy)
        for file in (args.prompt_data, args.eval_dataset):
            if file and Path(file).is_file():
                check_labels(Path(file), mixture.assign_file(Path(file), args.input_key), args)
        for source, played in _play_files(settings, args):
            if played.fault:
                what = f"ENVIRONMENT {source} fails on the first line of TRAIN_DATA that is for it: {played.fault}"
                yield Problem(what, played.remedy)
    except UserError as error:
        yield Problem(error.problem.what, error.problem.remedy or "fix what the check() of the environment reports")


def _inspect(source: str, folder: Path) -> list[tuple[str, str]]:
    """Load an environment and run its own check, apart; return what is wrong with its tools, and each remedy."""

    def look() -> list[tuple[str, str]]:
        environment = load(source)
        environment.check()
        return [(problem.what, problem.remedy) for problem in check_tools(environment, folder, source)]

    try:
        return call_apart(look)
    except NoAnswerError as error:
        raise UserError(f"ENVIRONMENT {source} {error.problem.what}", error.problem.remedy) from None


def check_tools(environment: type[Environment], folder: Path, source: str) -> Iterator[Problem]:
    """Refuse tools that the model would never learn of. Tools that only an instance knows are not checked."""
    tools = environment.tools if isinstance(environment.tools, Sequence) else ()
    if not has_chat_template(folder):
        return  # another check reports it
    names = {"builtin_tools" if isinstance(tool, BuiltInTool) else "tools" for tool in tools}
    for name in chat_template.find_unread(folder, sorted(names)):
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


def describe(config: Config) -> list[str]:
    """Describe in lines for people what was played in each .py file, after :func:`check_environment` passed."""
    if not has_environment(config.args):
        return []
    lines = []
    for source, played in _play_files(EnvironmentSettings.from_variables(os.environ), config.args):
        lines.append(f"played      {Path(source).name}: {played.line}")
        if played.error:
            lines.append(
                f"WARNING: {played.error}. In a run the model reads only that the tool failed; raise ToolError for "
                "what it should read"
            )
    return lines


@dataclass(frozen=True)
class _Played:
    """A conversation: what was said, what a tool raised, and what is wrong with the environment; "" for nothing."""

    line: str
    error: str
    fault: str
    remedy: str = "correct the file"


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
            yield member.source, _play_conversation(member.source, prompt, label, settings.limits)


class _Trial:
    """A policy that calls the first tool once, with arguments made from its schema, and then answers "1".

    Args:
        text, number: what the arguments are made from.

    Attributes:
        called: the function that was called, with `name` and perhaps `parameters`; None before.
        heard: what came back; None before.
    """

    tokens = 0
    called: dict[str, Any] | None = None
    heard: Any = None

    def __init__(self, text: str, number: int) -> None:
        self._text, self._number = text, number

    async def respond(self, messages: list[Message], tools: list[dict[str, Any]]) -> tuple[Message, bool]:
        said: Message = {"role": "assistant", "content": "1"}
        if tools and not self.tokens:
            self.called = list_functions(tools)[0]["function"]
            call = {"name": self.called["name"], "arguments": json.dumps(self.arguments())}
            said |= {"content": "", "tool_calls": [{"id": "1", "type": "function", "function": call}]}
        elif self.called and self.tokens == 1:
            self.heard = messages[-1].get("content")
        self.tokens += 1
        return said, False

    def arguments(self) -> dict[str, Any]:
        schemas = self.schema().get("properties") or {}
        return {name: self._value(schema) for name, schema in schemas.items()}

    def schema(self) -> dict[str, Any]:
        return (self.called or {}).get("parameters") or {}

    def _value(self, schema: Any) -> Any:
        if not isinstance(schema, dict):  # true allows anything
            return self._text
        values = {"integer": self._number, "number": float(self._number), "boolean": True, "array": [], "object": {}}
        return schema["enum"][0] if schema.get("enum") else values.get(str(schema.get("type")), self._text)


@functools.cache  # a restart repeats the checks
def _play_conversation(source: str, prompt: str, label: str, limits: RolloutLimits) -> _Played:
    """Play a conversation on a line of TRAIN_DATA, apart; others with other arguments while the tool refuses them."""
    deadline = DEADLINE + len(_NUMBERS) * (limits.tool_seconds + limits.score_seconds)
    try:
        return _Played(*call_apart(lambda: _conversation(source, prompt, label, limits), deadline))
    except UserError as error:
        return _Played("", "", error.problem.what, error.problem.remedy)


def _conversation(source: str, prompt: str, label: str, limits: RolloutLimits) -> tuple[str, ...]:
    kind, trial = load(source), replace(limits, turns=min(2, limits.turns))
    own, refused = json.loads(label), []
    for text, number in zip((*_TEXTS, own if isinstance(own, str) else "a"), _NUMBERS, strict=True):
        policy = _Trial(text, number)
        outcome, score = asyncio.run(play(lambda: kind(json.loads(prompt), json.loads(label)), policy, trial))
        if not outcome.errors or outcome.tool_fault or outcome.fault or outcome.ending == "time":
            break
        refused.append((outcome, score, policy))
    else:
        outcome, score, policy = refused[0]
    said, error = f'answer "1" -> reward {score.reward:g}, score {score.score:g}', ""
    if policy.called:
        name, arguments = policy.called["name"], json.dumps(policy.arguments())
        none = " (no call succeeded, so what it returns is unchecked)" if len(refused) == len(_NUMBERS) else ""
        said = f"{name}({arguments}) -> {policy.heard!r:.80}{none}, {said}"
        if outcome.tool_fault:
            error = f"the tool {name} failed on {arguments}: {locate_error(outcome.tool_fault, Path(source))}"
    return (said, error, *_fault(outcome, kind, policy, error, limits))


def _fault(
    outcome: Outcome, kind: type[Environment], policy: _Trial, error: str, limits: RolloutLimits
) -> tuple[str, ...]:
    """Return what is wrong with an environment, and perhaps the remedy; "" if nothing is."""
    if outcome.fault:
        return (outcome.fault,)
    if outcome.ending == "time":
        return (f"it took more than {limits.seconds:g} seconds",)
    if outcome.calls and kind.call is Environment.call and not kind.answers_calls:
        return ("it has tools, but no method `call`",)
    if isinstance(outcome.tool_fault, _MISTAKES):
        import jsonschema  # takes half a second

        try:
            jsonschema.validate(policy.arguments(), policy.schema())
        except Exception:  # also for a schema that cannot be read
            return ("",)
        return error, "correct the file, or raise ToolError for arguments that the tool does not take"
    return ("",)
