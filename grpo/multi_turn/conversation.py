"""The loop of a rollout: a policy's turns and what the environment says to them, under limits."""

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from grpo.multi_turn.environment import Environment, Message, Score, SetupError, ToolError

logger = logging.getLogger("openrlhf.grpo.conversation")


class ContextFull(Exception):
    """A turn for which no room is left in the model's context."""


class EnvironmentFault(Exception):
    """What an environment did wrong, other than in a tool: its rollout has no reward, and the others go on."""


class Policy(Protocol):
    """Whoever answers: the engine that trains, or a model behind an API."""

    async def respond(self, messages: list[Message], tools: list[dict[str, Any]]) -> tuple[Message, bool]:
        """Return the assistant's message, and whether it was cut at a length limit.

        Raises:
            ContextFull: where no token has room.
            EnvironmentFault: for messages that cannot be said to the model.
        """


@dataclass(frozen=True)
class Limits:
    """What ends a conversation before its own end.

    Attributes:
        turns: of the policy.
        seconds: for the whole; a turn that is being sampled then is given up.
        tool_seconds: for one tool call; the model observes that it took too long.
    """

    turns: int = 8
    seconds: float = 300.0
    tool_seconds: float = 20.0

    @classmethod
    def from_variables(cls, variables: dict[str, str]) -> "Limits":
        """Read TURN_LIMIT, ROLLOUT_SECONDS and TOOL_SECONDS; those that are missing have their defaults.

        Raises:
            SetupError: for what is no positive number.
        """
        found: dict[str, float] = {}
        for field, name in (("turns", "TURN_LIMIT"), ("seconds", "ROLLOUT_SECONDS"), ("tool_seconds", "TOOL_SECONDS")):
            text = variables.get(name)
            if not text:
                continue
            try:
                found[field] = int(text) if field == "turns" else float(text)
            except ValueError:
                found[field] = 0
            if not 0 < found[field] < math.inf:
                raise SetupError(f"{name} is {text!r}: give a number above 0")
        return cls(**found)  # type: ignore[arg-type]


@dataclass
class Outcome:
    """A conversation that is over.

    Attributes:
        ending: "done", "turns", "time", "length", or "error" of the environment.
        turns: of the policy; a turn that was given up is not one.
        calls, errors: tool calls, and those that failed.
    """

    messages: list[Message]
    ending: str = "turns"
    turns: int = 0
    calls: int = 0
    errors: int = 0

    def logs(self) -> dict[str, float]:
        """Return the numbers of a rollout, of the same names for every one."""
        return {
            "turns": float(self.turns),
            "tool_calls": float(self.calls),
            "tool_errors": float(self.errors),
            **{f"ended_by_{limit}": float(self.ending == limit) for limit in ("turns", "time", "length", "error")},
        }


async def converse(environment: Environment, policy: Policy, limits: Limits) -> Outcome:
    """Let the policy and the environment talk until one of them or a limit ends it.

    Errors of the policy go on to the caller: an engine that fails must end a run.
    """
    outcome, limit = Outcome([]), asyncio.timeout(limits.seconds)
    try:
        async with limit:
            outcome.messages += await _asked(environment.start)
            await _turns(environment, policy, limits, outcome)
    except ContextFull:
        outcome.ending = "length"
    except (TimeoutError, EnvironmentFault) as error:
        if limit.expired():
            outcome.ending = "time"
        elif isinstance(error, EnvironmentFault):
            logger.exception("an error of the environment ended a rollout: it has no reward")
            outcome.ending = "error"
        else:
            raise
    return outcome


async def _asked(method: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """Return what a method of the environment returns.

    Raises:
        EnvironmentFault: in place of whatever it raises, a TimeoutError of its own too: that is not the limit's.
    """
    try:
        return await method(*arguments)
    except Exception as error:
        raise EnvironmentFault(f"{method.__name__} failed ({type(error).__name__}: {error})") from error


async def _turns(environment: Environment, policy: Policy, limits: Limits, outcome: Outcome) -> None:
    tools = [tool.as_openai() for tool in environment.tools]
    messages = outcome.messages
    for _ in range(limits.turns):
        message, is_cut = await policy.respond(messages, tools)
        messages.append(message)
        outcome.turns += 1
        if is_cut:
            outcome.ending = "length"
            return
        if calls := message.get("tool_calls"):
            outcome.calls += len(calls)
            answers = await asyncio.gather(*(_call(environment, call, limits.tool_seconds) for call in calls))
            outcome.errors += sum(is_error for _, is_error in answers)
            messages += [answer for answer, _ in answers]
            continue
        said = await _asked(environment.reply, messages)
        if said is None:
            outcome.ending = "done"
            return
        messages += said


async def _call(environment: Environment, call: dict[str, Any], seconds: float) -> tuple[Message, bool]:
    """Return the tool's message, and whether it tells of an error."""
    name, is_error = call["function"]["name"], True
    try:
        async with asyncio.timeout(seconds):
            content = await environment.call(name, _arguments(call["function"]["arguments"]))
        is_error = False
    except ToolError as error:
        content = f"error: {error}"
    except TimeoutError:
        content = f"error: {name} took more than {seconds:g} seconds"
    except Exception:  # the environment's own fault, which must not end a run: counted in tool_errors
        logger.exception("the tool %r failed on %s", name, call["function"]["arguments"])
        content = f"error: {name} failed"
    return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": content}, is_error


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the arguments are no JSON ({error})") from None
    if not isinstance(arguments, dict):
        raise ToolError("the arguments are no JSON object")
    return arguments


async def scored(environment: Environment, outcome: Outcome) -> Score:
    """Return the environment's score; NaN where it fails or has failed, which counts as a missing reward."""
    if outcome.ending == "error":
        return Score(math.nan, math.nan)
    try:
        return await environment.score(outcome.messages, outcome.ending)
    except Exception:  # as for a reward function: one sample without a reward must not end a run
        logger.exception("a rollout could not be scored: it has no reward")
        return Score(math.nan, math.nan)
