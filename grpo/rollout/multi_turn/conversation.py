"""The loop of a rollout: a policy's turns and the environment's replies, under limits."""

import asyncio
import json
import logging
import math
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

from grpo.rollout.multi_turn.environment import (
    Environment,
    Message,
    Score,
    ToolError,
)
from grpo.rollout.multi_turn.isolation import EnvironmentFault, Isolated, describe_error, format_value
from grpo.rollout.multi_turn.settings import RolloutLimits

logger = logging.getLogger("openrlhf.grpo.conversation")

A_MESSAGE = "give dicts with a role, valid as JSON and in the form of the OpenAI protocol"

logged_errors: set[tuple[object, ...]] = set()  # errors whose traceback this process has logged


class ContextFull(Exception):
    """The model's context has no room for another turn."""


class Policy(Protocol):
    """The model that answers: the engine in training, or a model behind an API.

    Attributes:
        tokens: how many it has sampled.
    """

    @property
    def tokens(self) -> int: ...

    async def respond(self, messages: list[Message], tools: list[dict[str, Any]]) -> tuple[Message, bool]:
        """Return the assistant's message, and whether a length limit cut it.

        Raises:
            ContextFull: if not even one token fits.
            EnvironmentFault: for messages that cannot be rendered for the model.
        """


@dataclass
class Outcome:
    """A finished conversation.

    Attributes:
        ending: "done", "turns", "time" or "length", or "error" for the environment's.
        turns: of the policy; an aborted turn does not count.
        calls, errors: tool calls, and how many of them failed.
        tool_fault: the last error of a tool besides ToolError.
        fault: the environment's error that ended it, or its scoring error; "" if no error occurred.
        is_blocked: whether the environment blocked its thread beyond a deadline.
        is_closed: whether its `close` succeeded.
    """

    messages: list[Message]
    ending: str = "turns"
    turns: int = 0
    calls: int = 0
    errors: int = 0
    tool_fault: Exception | None = None
    fault: str = ""
    is_blocked: bool = False
    is_closed: bool = True

    def logs(self) -> dict[str, float]:
        """Return the numbers of a rollout, with the same names for every rollout."""
        return {
            "turns": float(self.turns),
            "tool_calls": float(self.calls),
            "tool_errors": float(self.errors),
            **{f"ended_by_{limit}": float(self.ending == limit) for limit in ("turns", "time", "length", "error")},
            "environment_blocked": float(self.is_blocked),
            "close_failed": float(not self.is_closed),
        }


async def play(make: Callable[[], Environment], policy: Policy, limits: RolloutLimits) -> tuple[Outcome, Score]:
    """Return a finished conversation and its score. The environment is closed then, whatever happened.

    The environment is made and runs in a thread of its own, so it may block without stopping other rollouts.
    """
    own = Isolated(make)
    try:
        outcome = await hold_conversation(own, policy, limits)
        await own.is_free()  # what blocks now must not use the time of the score
        score = await score_conversation(own, outcome, limits.score_seconds)
    except BaseException:
        await own.end()
        raise
    outcome.is_closed = await own.end()
    outcome.is_blocked = own.is_blocked
    return outcome, score


async def hold_conversation(environment: Environment, policy: Policy, limits: RolloutLimits) -> Outcome:
    """Let the policy and the environment talk until one of them or a limit ends it.

    The policy's errors propagate to the caller: a failing engine must end the run.
    """
    outcome, limit = Outcome([]), asyncio.timeout(limits.seconds)
    try:
        async with limit:
            outcome.messages += await _ask(environment.start) or []
            if not outcome.messages:
                raise EnvironmentFault("start returned no message; a conversation must begin with one")
            await _turns(environment, policy, limits, outcome)
    except ContextFull:
        outcome.ending = "length"
    except (TimeoutError, EnvironmentFault) as error:
        if limit.expired():
            outcome.ending = "time"
        elif isinstance(error, EnvironmentFault):
            _log("an error of the environment ended a rollout, which gets no reward: %s", error, error=error)
            outcome.ending, outcome.fault = "error", str(error)
        else:
            raise
    return outcome


def _log(text: str, *values: object, error: Exception) -> None:
    """Log an error of an environment, with its traceback if it is the first of its kind in this process.

    An error may hit every rollout of every step.
    """
    origin = error.__cause__ or error if isinstance(error, EnvironmentFault) else error
    frames = traceback.extract_tb(origin.__traceback__)
    kind = (type(origin), *((frame.filename, frame.lineno) for frame in frames))
    logger.error(text, *values, exc_info=None if kind in logged_errors else origin)
    logged_errors.add(kind)


def is_message(value: object) -> bool:
    """Return whether any policy accepts a value as a message: a dict with a role, valid as JSON and UTF-8.

    The template checks content and unknown roles.
    """
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    calls = value.get("tool_calls") or []
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except Exception:  # also those of its objects' own classes
        return False
    return isinstance(calls, list) and all(_is_call(call) for call in calls)


def _is_call(value: object) -> bool:
    if not isinstance(value, dict) or not {"id", "type", "function"} <= value.keys():
        return False
    function = value["function"]
    return isinstance(function, dict) and all(isinstance(function.get(key), str) for key in ("name", "arguments"))


async def _ask(method: Callable[..., Awaitable[Any]], *arguments: Any) -> list[Message] | None:
    """Return what a method of the environment returns.

    Raises:
        EnvironmentFault: for any exception, including its own TimeoutError, which is not the rollout's limit.
    """
    try:
        said = await method(*arguments)
        if not isinstance(said, list | None):
            raise TypeError(f"it returned {type(said).__name__}, not a list of messages")
        if wrong := [message for message in said or [] if not is_message(message)]:
            raise TypeError(f"it returned {format_value(wrong[0]):.200}, which is not a message: {A_MESSAGE}")
        return said
    except EnvironmentFault:
        raise
    except Exception as error:
        raise EnvironmentFault(f"{method.__name__} failed ({describe_error(error)})") from error


async def _turns(environment: Environment, policy: Policy, limits: RolloutLimits, outcome: Outcome) -> None:
    tools = _tools(environment)
    messages = outcome.messages
    for _ in range(limits.turns):
        if wrong := [message for message in messages if not is_message(message)]:  # environments may edit in place
            raise EnvironmentFault(
                f"its messages contain {format_value(wrong[0]):.200}, which is not a message: {A_MESSAGE}"
            )
        message, is_cut = await policy.respond(messages, tools)
        messages.append(message)
        outcome.turns += 1
        environment.sampled_tokens = policy.tokens
        if is_cut:
            outcome.ending = "length"
            return
        if calls := message.get("tool_calls"):
            outcome.calls += len(calls)
        if calls and not environment.answers_calls:
            answers = await asyncio.gather(*(_call(environment, call, limits.tool_seconds, outcome) for call in calls))
            outcome.errors += sum(is_error for _, is_error in answers)
            messages += [answer for answer, _ in answers]
            continue
        said = await _ask(environment.reply, messages)
        if said is None:
            outcome.ending = "done"
            return
        messages += said


def _tools(environment: Environment) -> list[dict[str, Any]]:
    try:
        tools = [tool.as_openai() for tool in environment.tools]
        json.dumps(tools, ensure_ascii=False, allow_nan=False).encode()
        return tools
    except Exception as error:  # from a property, or from an object that is not a Tool
        raise EnvironmentFault(f"its tools cannot be listed ({describe_error(error)})") from error


async def _call(
    environment: Environment, call: dict[str, Any], seconds: float, outcome: Outcome
) -> tuple[Message, bool]:
    """Return the tool's message, and whether it reports an error."""
    name, is_error = call["function"]["name"], True
    try:
        async with asyncio.timeout(seconds):
            content = await environment.call(name, _arguments(call["function"]["arguments"]))
        if not isinstance(content, str):
            logger.error("%s returned %s instead of text", name, type(content).__name__)
            outcome.tool_fault = TypeError(f"{name} returned {type(content).__name__} instead of text")
            raise ToolError(str(outcome.tool_fault))
        _check_text(name, content)
        is_error = False
    except ToolError as error:
        content = f"error: {format_value(error, str)}".encode("utf-8", "backslashreplace").decode()
    except EnvironmentFault:
        raise
    except TimeoutError:
        content = f"error: {name} took more than {seconds:g} seconds"
    except Exception as error:  # the environment's error must not end the run; tool_errors counts it
        _log("the tool %r failed on %s: %s", name, call["function"]["arguments"], describe_error(error), error=error)
        outcome.tool_fault = error
        content = f"error: {name} failed"
    return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": content}, is_error


def _check_text(name: str, content: str) -> None:
    try:
        content.encode()
    except UnicodeEncodeError as error:  # a lone surrogate, which JSON's escapes can write and no tokenizer reads
        raise ToolError(f"{name} returned text that is not valid Unicode ({error.reason})") from None


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the arguments are not JSON ({error})") from None
    if not isinstance(arguments, dict):
        raise ToolError("the arguments are not a JSON object")
    return arguments


async def score_conversation(environment: Environment, outcome: Outcome, seconds: float) -> Score:
    """Return the environment's score in floats; NaN if it fails or has failed, which counts as a missing reward.

    If scoring fails or takes more than `seconds`, the outcome records the fault and its ending becomes "error".
    """
    if outcome.ending == "error":
        return Score(math.nan, math.nan)
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return _convert_score(await environment.score(outcome.messages, outcome.ending))
    except Exception as error:  # as for a reward function: one missing reward must not end a run
        why = f"it took more than {seconds:g} seconds" if limit.expired() else describe_error(error)
        outcome.ending, outcome.fault = "error", f"score failed ({why})"
        _log("a rollout could not be scored and gets no reward: %s", outcome.fault, error=error)
        return Score(math.nan, math.nan)


def _convert_score(score: object) -> Score:
    """Return a score with its numbers as floats. NaN in a log means that the rollout lacks it."""
    if not isinstance(score, Score):
        raise TypeError(f"it returned {type(score).__name__}, not a Score")
    if not isinstance(score.logs, dict) or not all(isinstance(name, str) for name in score.logs):
        raise TypeError(f"its logs are {score.logs!r:.200}, not numbers by name")
    for name, value in (("reward", score.reward), ("score", score.score), *score.logs.items()):
        if not isinstance(value, Real):
            raise TypeError(f"its {name} is {value!r:.200}, not a number")
    if not (math.isfinite(score.reward) and math.isfinite(score.score)):
        raise ValueError(f"its reward is {score.reward} and its score {score.score}: give finite numbers")
    if not 0 <= score.score <= 1:
        raise ValueError(f"its score is {score.score}: give correctness from 0 to 1; only the reward may lie outside")
    return Score(float(score.reward), float(score.score), {name: float(value) for name, value in score.logs.items()})
