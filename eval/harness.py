"""Evaluations in an environment: limits, conversations on tokens by the code of training, and records."""

import argparse
import functools
import math
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from eval.problems import Chat, EvalProblem, derive_seed
from grpo.environments.conversation import play
from grpo.environments.environment import Environment, load
from grpo.environments.retrieval import VARIABLE
from grpo.environments.settings import RolloutLimits
from grpo.flags.parser import get_default
from grpo.launch.checks.own_code import NoAnswerError, call_apart
from grpo.rollout.harmony import SAMPLED, template_for
from grpo.rollout.response_text import decode_tokens
from grpo.rollout.thinking import Budget, Delimiter
from grpo.stack.problem import UserError
from grpo.stack.upstream import Engine

LIMITS = ("turns", "seconds", "tool_seconds", "score_seconds")
Hold = Callable[[Engine, EvalProblem, int], Awaitable[dict[str, Any]]]  # the conversation of a sample, by its number


def add_limits(command_line: argparse.ArgumentParser) -> None:
    """Add the limits of a conversation, whose defaults are those of train_grpo.sh."""
    group = command_line.add_argument_group("limits of a conversation", "Their defaults are those of train_grpo.sh.")
    group.add_argument("--library", help="like --library in train_grpo.sh, for retrieval")
    group.add_argument("--turns", default=get_default("turn_limit"), type=int, help="turns of the model")
    group.add_argument("--seconds", default=get_default("rollout_seconds"), type=float, help="seconds per conversation")
    group.add_argument("--tool-seconds", default=get_default("tool_seconds"), type=float, help="seconds per tool call")
    group.add_argument("--score-seconds", default=get_default("score_seconds"), type=float, help="seconds per score")


def load_environment(name: str, library: str | None = None) -> type[Environment]:
    """Return the class of an environment that can be used. Raises UserError if it cannot."""
    if library:
        os.environ[VARIABLE] = os.path.realpath(library)
    try:  # the user's code may raise anything, loop, or end its process
        call_apart(lambda: load(name).check())
    except NoAnswerError as error:
        raise UserError(f"environment {name} {error.problem.what}", error.problem.remedy) from None
    return load(name)


def read_sampling(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the options say of each call of the model; max_tokens are those of a turn."""
    return {name: getattr(options, name) for name in ("temperature", "top_p", "max_tokens")}


def prepare(
    kind: type[Environment], options: argparse.Namespace, chat: Chat, thinking: tuple[Delimiter, Budget] | None
) -> Hold:
    """Return a function that holds a conversation, and returns what it adds to its record: :mod:`grpo.run.records`.

    Args:
        thinking: delimiter and budget of each turn; None for no budget.

    Raises:
        UserError: for a limit that is not above 0, or a tokenizer that cannot render conversations.
    """
    for name in LIMITS:
        if not getattr(options, name) > 0:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(options, name):g}", "give more than 0")
    limits = RolloutLimits(*(getattr(options, name) for name in LIMITS))
    template = template_for(chat.tokenizer, chat.variables)

    async def hold(engine: Engine, problem: EvalProblem, number: int) -> dict[str, Any]:
        from vllm import SamplingParams

        from grpo.rollout.multi_turn import EnginePolicy

        seed = derive_seed(options.seed, problem.id, number)
        params = SamplingParams(**read_sampling(options), min_tokens=1, seed=seed)
        policy = EnginePolicy(template, engine, params, options.max_model_len, thinking)
        outcome, score = await play(functools.partial(kind, problem.prompt, problem.label), policy, limits)
        numbers = {"reward": score.reward, "score": score.score, **outcome.logs(), **policy.logs(), **score.logs}
        return {
            "seed": seed,
            **{key: value if math.isfinite(value) else None for key, value in numbers.items()},
            "ending": outcome.ending,
            **({"error": outcome.fault} if outcome.fault else {}),
            "response_length": policy.tokens,
            "truncated": float(outcome.ending == "length"),
            "messages": [{key: value for key, value in each.items() if key != SAMPLED} for each in outcome.messages],
            "conversation": [decode_tokens(chat.tokenizer, row.tokens) for row in policy.history.rows],
        }

    return hold


def lines(result: Mapping[str, Any]) -> list[str]:
    """Return the means over an evaluation's conversations as lines for people."""
    return [f"{name:24} {value:g}" for name, value in result.get("means", {}).items()]
