"""Evaluations in an environment: limits and records."""

import argparse
import math
import os
from collections.abc import Mapping
from typing import Any

from grpo.environments.conversation import Outcome
from grpo.environments.environment import Environment, Score
from grpo.environments.loading import load
from grpo.environments.retrieval import VARIABLE
from grpo.environments.settings import RolloutLimits
from grpo.launch.checks.own_code import NoAnswerError, call_apart
from grpo.rollout.harmony import SAMPLED
from grpo.settings.recipe import default
from grpo.stack.problem import UserError

LIMITS = ("turns", "seconds", "tool_seconds", "score_seconds")


def add_limits(command_line: argparse.ArgumentParser) -> None:
    """Add the limits of a conversation, whose defaults are those of train_grpo.sh."""
    group = command_line.add_argument_group("limits of a conversation", "Their defaults are those of train_grpo.sh.")
    group.add_argument("--turns", default=default("TURN_LIMIT"), type=int, help="turns of the model")
    group.add_argument("--seconds", default=default("ROLLOUT_SECONDS"), type=float, help="seconds per conversation")
    group.add_argument("--tool-seconds", default=default("TOOL_SECONDS"), type=float, help="seconds per tool call")
    group.add_argument("--score-seconds", default=default("SCORE_SECONDS"), type=float, help="seconds per score")


def read_limits(options: argparse.Namespace) -> RolloutLimits:
    """Return the limits.

    Raises:
        UserError: for one that is not above 0.
    """
    for name in LIMITS:
        if not getattr(options, name) > 0:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(options, name):g}", "give more than 0")
    return RolloutLimits(options.turns, options.seconds, options.tool_seconds, options.score_seconds)


def load_environment(name: str) -> type[Environment]:
    """Return the class of an environment that can be used.

    Raises:
        UserError: if it cannot.
    """
    if os.environ.get("LIBRARY"):  # as train_grpo.sh takes it
        os.environ.setdefault(VARIABLE, os.environ["LIBRARY"])
    try:  # the user's code may raise anything, loop, or end its process
        call_apart(lambda: load(name).check())
    except NoAnswerError as error:
        raise UserError(f"environment {name} {error.problem.what}", error.problem.remedy) from None
    return load(name)


def make_record(outcome: Outcome, score: Score, tokens: int, logs: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return what a conversation adds to its record, see :mod:`grpo.run.records`.

    Args:
        tokens: how many the model has sampled.
        logs: more numbers.
    """
    numbers = {"reward": score.reward, "score": score.score, **outcome.logs(), **(logs or {}), **score.logs}
    messages = [{key: value for key, value in each.items() if key != SAMPLED} for each in outcome.messages]
    return {
        **{key: value if math.isfinite(value) else None for key, value in numbers.items()},
        "ending": outcome.ending,
        **({"error": outcome.fault} if outcome.fault else {}),
        "response_length": tokens,
        "truncated": float(outcome.ending == "length"),
        "messages": messages,
    }


def lines(result: Mapping[str, Any]) -> list[str]:
    """Return the means over an evaluation's conversations as lines for people."""
    return [f"{name:24} {value:g}" for name, value in result.get("means", {}).items()]
