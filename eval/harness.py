"""Evaluations in an environment: limits, conversations on tokens by the code of training, and records."""

import argparse
import functools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eval.problems import EvalProblem, derive_seed
from grpo.environments.conversation import play
from grpo.environments.environment import Environment, load
from grpo.environments.retrieval import VARIABLE
from grpo.environments.settings import RolloutLimits
from grpo.flags.parser import get_default
from grpo.launch.checks.own_code import NoAnswerError, call_apart
from grpo.rollout.harmony import SAMPLED, Template
from grpo.rollout.response_text import decode_tokens
from grpo.rollout.thinking import Budget, Delimiter
from grpo.stack.problem import UserError
from grpo.stack.upstream import Engine, FastTokenizer

LIMITS = ("turns", "seconds", "tool_seconds", "score_seconds")


def add_limits(command_line: argparse.ArgumentParser) -> None:
    """Add the limits of a conversation, whose defaults are those of train_grpo.sh."""
    group = command_line.add_argument_group("limits of a conversation", "Their defaults are those of train_grpo.sh.")
    group.add_argument("--library", help="like --library in train_grpo.sh, for retrieval")
    group.add_argument("--turns", default=get_default("turn_limit"), type=int, help="turns of the model")
    group.add_argument("--seconds", default=get_default("rollout_seconds"), type=float, help="seconds per conversation")
    group.add_argument("--tool-seconds", default=get_default("tool_seconds"), type=float, help="seconds per tool call")
    group.add_argument("--score-seconds", default=get_default("score_seconds"), type=float, help="seconds per score")


def read_limits(options: argparse.Namespace) -> RolloutLimits:
    """Return the limits. Raises UserError for one that is not above 0."""
    for name in LIMITS:
        if not getattr(options, name) > 0:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(options, name):g}", "give more than 0")
    return RolloutLimits(options.turns, options.seconds, options.tool_seconds, options.score_seconds)


def load_environment(name: str, library: str | None = None) -> type[Environment]:
    """Return the class of an environment that can be used. Raises UserError if it cannot."""
    if library:
        os.environ[VARIABLE] = os.path.realpath(library)
    try:  # the user's code may raise anything, loop, or end its process
        call_apart(lambda: load(name).check())
    except NoAnswerError as error:
        raise UserError(f"environment {name} {error.problem.what}", error.problem.remedy) from None
    return load(name)


@dataclass(frozen=True)
class Setting:
    """What the conversations of an evaluation share.

    Attributes:
        sampling: temperature, top_p, and max_tokens of a turn.
        max_length: of the whole context, in tokens.
        thinking: delimiter and budget of each turn; None for no budget.
        seed: of the evaluation.
    """

    kind: type[Environment]
    limits: RolloutLimits
    template: Template
    tokenizer: FastTokenizer
    sampling: dict[str, Any]
    max_length: int
    thinking: tuple[Delimiter, Budget] | None
    seed: int


async def hold_conversation(engine: Engine, setting: Setting, problem: EvalProblem, number: int) -> dict[str, Any]:
    """Hold one conversation, and return what it adds to its record, see :mod:`grpo.run.records`."""
    from vllm import SamplingParams

    from grpo.rollout.multi_turn import EnginePolicy

    seed = derive_seed(setting.seed, problem.id, number)
    params = SamplingParams(**setting.sampling, min_tokens=1, seed=seed)
    policy = EnginePolicy(setting.template, engine, params, setting.max_length, setting.thinking)
    make = functools.partial(setting.kind, problem.prompt, problem.label)
    outcome, score = await play(make, policy, setting.limits)
    texts = [decode_tokens(setting.tokenizer, row.tokens) for row in policy.history.rows]
    numbers = {"reward": score.reward, "score": score.score, **outcome.logs(), **policy.logs(), **score.logs}
    messages = [{key: value for key, value in each.items() if key != SAMPLED} for each in outcome.messages]
    return {
        "seed": seed,
        **{key: value if math.isfinite(value) else None for key, value in numbers.items()},
        "ending": outcome.ending,
        **({"error": outcome.fault} if outcome.fault else {}),
        "response_length": policy.tokens,
        "truncated": float(outcome.ending == "length"),
        "messages": messages,
        "conversation": texts,
    }


def lines(result: Mapping[str, Any]) -> list[str]:
    """Return the means over an evaluation's conversations as lines for people."""
    return [f"{name:24} {value:g}" for name, value in result.get("means", {}).items()]
