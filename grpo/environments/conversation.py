"""The loop of a rollout: a policy's turns and the environment's replies, under limits."""

import asyncio
import json
import logging
import math
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from grpo.environments.environment import ContextFull, Environment, Message, Score, ToolError
from grpo.environments.settings import RolloutLimits

logger = logging.getLogger("openrlhf.grpo.conversation")

CLOSE_SECONDS = 10.0
_FAILURES = (Exception, SystemExit)  # of an environment's code; SystemExit would end the engine

logged_errors: set[tuple[object, ...]] = set()  # errors whose traceback this process has logged


class EnvironmentFault(Exception):
    """An error of an environment outside its tools. Its rollout gets no reward; the others continue."""


class Policy(Protocol):
    """The model that answers, and how many tokens it has sampled; see :class:`~.rollout.EnginePolicy`."""

    tokens: int

    async def respond(self, messages: list[Message], tools: list[dict[str, Any]]) -> tuple[Message, bool]:
        """Return the assistant's message, and whether a length limit cut it."""


@dataclass
class Outcome:
    """A finished conversation.

    Attributes:
        ending: "done", "turns", "time" or "length", or "error" for the environment's.
        turns: of the policy; an aborted turn does not count.
        calls, errors: tool calls, and how many of them failed.
        tool_fault: the last error of a tool besides ToolError.
        fault: the environment's error that ended it, or its scoring error; "" if no error occurred.
        is_closed: whether its `close` succeeded.
    """

    messages: list[Message] = field(default_factory=list)
    ending: str = "turns"
    turns: int = 0
    calls: int = 0
    errors: int = 0
    tool_fault: BaseException | None = None
    fault: str = ""
    is_closed: bool = True

    def logs(self) -> dict[str, float]:
        """Return the numbers of a rollout, with the same names for every rollout."""
        return {
            "turns": float(self.turns),
            "tool_calls": float(self.calls),
            "tool_errors": float(self.errors),
            **{f"ended_by_{limit}": float(self.ending == limit) for limit in ("turns", "time", "length", "error")},
            "close_failed": float(not self.is_closed),
        }

    def fail(self, fault: str, error: BaseException) -> None:
        """Note an error of the environment, which leaves the rollout without a reward."""
        self.ending, self.fault = "error", fault
        _log("an error of the environment leaves a rollout without a reward", fault, error)


async def play(make: Callable[[], Environment], policy: Policy, limits: RolloutLimits) -> tuple[Outcome, Score]:
    """Make an environment, and return a finished conversation and its score. The environment is closed in any case."""
    outcome = Outcome()
    try:
        environment = make()
    except _FAILURES as error:
        outcome.fail(f"its constructor failed ({_describe(error)})", error)
        return outcome, Score(math.nan, math.nan)
    try:
        await hold_conversation(environment, policy, limits, outcome)
        score = await score_conversation(environment, outcome, limits.score_seconds)
    finally:
        outcome.is_closed = await _close(environment)
    return outcome, score


async def hold_conversation(
    environment: Environment, policy: Policy, limits: RolloutLimits, outcome: Outcome | None = None
) -> Outcome:
    """Let the policy and the environment talk until one of them or a limit ends it.

    The policy's errors propagate to the caller: a failing engine must end the run.
    """
    outcome, limit = outcome or Outcome(), asyncio.timeout(limits.seconds)
    try:
        async with limit:
            await (_follow if environment.drive else _lead)(environment, policy, limits, outcome)
    except ContextFull:
        outcome.ending = "length"
    except EnvironmentFault as fault:
        outcome.fail(str(fault), fault.__cause__ or fault)
    except TimeoutError:
        if not limit.expired():
            raise
        outcome.ending = "time"
    return outcome


async def _start(environment: Environment, outcome: Outcome) -> list[dict[str, Any]]:
    """Keep the first messages, and return the tools. Some environments know them only then."""
    outcome.messages += await environment.start()
    if not outcome.messages:
        raise ValueError("it returned no message; a conversation must begin with one")
    return [tool.as_openai() for tool in environment.tools]


async def _ask(what: str, method: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """Return what a method of the environment returns.

    Raises:
        EnvironmentFault: for any exception, including its own TimeoutError, which is not the rollout's limit.
    """
    try:
        return await method(*arguments)
    except _FAILURES as error:
        raise EnvironmentFault(f"{what} failed ({_describe(error)})") from error


async def _take_turn(
    environment: Environment, policy: Policy, messages: list[Message], tools: list[dict[str, Any]], outcome: Outcome
) -> Message:
    message, is_cut = await policy.respond(messages, tools)
    outcome.turns += 1
    outcome.calls += len(message.get("tool_calls") or [])
    environment.sampled_tokens = policy.tokens
    outcome.ending = "length" if is_cut else outcome.ending
    return message


async def _lead(environment: Environment, policy: Policy, limits: RolloutLimits, outcome: Outcome) -> None:
    tools, messages = await _ask("start", _start, environment, outcome), outcome.messages
    for _ in range(limits.turns):
        message = await _take_turn(environment, policy, messages, tools, outcome)
        messages.append(message)
        if outcome.ending == "length":
            return
        if calls := message.get("tool_calls"):
            messages += await asyncio.gather(*(_call(environment, call, limits, outcome) for call in calls))
            continue
        said = await _ask("reply", environment.reply, messages)
        if said is None:
            outcome.ending = "done"
            return
        if not isinstance(said, list):
            raise EnvironmentFault(f"reply returned {type(said).__name__}, not a list of messages")
        messages += said


async def _follow(environment: Environment, policy: Policy, limits: RolloutLimits, outcome: Outcome) -> None:
    """Let an environment's own loop request turns, until the loop ends or a limit is reached."""
    failures: list[Exception] = []

    async def turn(messages: list[Message], tools: list[dict[str, Any]]) -> tuple[Message, bool]:
        if outcome.turns == limits.turns:
            outcome.ending = "turns"
        if outcome.ending != "done":
            raise ContextFull
        try:
            message = await _take_turn(environment, policy, messages, tools, outcome)
        except ContextFull:
            outcome.ending = "length"
            raise
        except Exception as error:
            failures.append(error)
            raise
        outcome.messages = [*messages, message]
        return message, outcome.ending == "length"

    outcome.ending = "done"
    try:
        await _ask("its loop", environment.drive, turn)
    finally:
        if failures:
            raise failures[0]


async def _call(environment: Environment, call: dict[str, Any], limits: RolloutLimits, outcome: Outcome) -> Message:
    """Return the tool's message. An error is in it, for the model to read."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    try:
        async with asyncio.timeout(limits.tool_seconds):
            content = await environment.call(name, _parse(arguments))
        if not isinstance(content, str):
            raise TypeError(f"{name} returned {type(content).__name__} instead of text")
    except _FAILURES as error:
        outcome.errors += 1
        if isinstance(error, ToolError):
            content = f"error: {error}"
        elif isinstance(error, TimeoutError):
            content = f"error: {name} took more than {limits.tool_seconds:g} seconds"
        else:
            outcome.tool_fault, content = error, f"error: {name} failed"
            _log("a tool failed", f"{name} on {arguments}: {_describe(error)}", error)
    content = content.encode("utf-8", "replace").decode()  # no tokenizer reads a lone surrogate
    return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": content}


def _parse(arguments: str) -> dict[str, Any]:
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the arguments are not JSON ({error})") from None
    if not isinstance(parsed, dict):
        raise ToolError("the arguments are not a JSON object")
    return parsed


async def score_conversation(environment: Environment, outcome: Outcome, seconds: float) -> Score:
    """Return the environment's score in floats; NaN if it fails or has failed, which counts as a missing reward.

    If scoring fails or takes more than `seconds`, the outcome records the fault and its ending becomes "error".
    """
    if outcome.ending != "error":
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return _check_score(await environment.score(outcome.messages, outcome.ending))
        except _FAILURES as error:  # as for a reward function: one missing reward must not end a run
            why = f"it took more than {seconds:g} seconds" if limit.expired() else _describe(error)
            outcome.fail(f"score failed ({why})", error)
    return Score(math.nan, math.nan)


def _check_score(given: object) -> Score:
    """Return a score with its numbers as floats. NaN in a log means that the rollout lacks it."""
    if not isinstance(given, Score):
        raise TypeError(f"it returned {type(given).__name__}, not a Score")
    score = Score(float(given.reward), float(given.score), {str(k): float(v) for k, v in given.logs.items()})
    if not math.isfinite(score.reward):
        raise ValueError(f"its reward is {score.reward}: give a finite number")
    if not 0 <= score.score <= 1:
        raise ValueError(f"its score is {score.score}: give correctness from 0 to 1; only the reward may lie outside")
    return score


async def _close(environment: Environment) -> bool:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await environment.close()
    except _FAILURES as error:
        _log("an environment could not be closed", _describe(error), error)
        return False
    return True


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _log(what: str, why: str, error: BaseException) -> None:
    """Log an error of an environment, with its traceback if it is the first of its kind: it may hit every rollout."""
    kind = (type(error), *((frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)))
    logger.error("%s: %s", what, why, exc_info=None if kind in logged_errors else error)
    logged_errors.add(kind)
