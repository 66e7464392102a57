"""Samples a model in an engine in conversations with an environment: on tokens, by the code of training."""

import functools
from dataclasses import dataclass
from typing import Any

from eval import harness
from eval.problems import EvalProblem, derive_seed
from grpo.environments.conversation import play
from grpo.environments.environment import Environment
from grpo.environments.settings import RolloutLimits
from grpo.rollout.harmony import Template
from grpo.rollout.multi_turn import EnginePolicy
from grpo.rollout.response_text import decode_tokens
from grpo.rollout.thinking import Budget, Delimiter
from grpo.stack.upstream.engine import Engine
from grpo.stack.upstream.tokenizer import FastTokenizer


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
    """Hold one conversation, and return what it adds to its record."""
    from vllm import SamplingParams

    seed = derive_seed(setting.seed, problem.id, number)
    params = SamplingParams(**setting.sampling, min_tokens=1, seed=seed)
    policy = EnginePolicy(setting.template, engine, params, setting.max_length, setting.thinking)
    make = functools.partial(setting.kind, problem.prompt, problem.label)
    outcome, score = await play(make, policy, setting.limits)
    texts = [decode_tokens(setting.tokenizer, row.tokens) for row in policy.history.rows]
    record = harness.make_record(outcome, score, policy.tokens, policy.logs())
    return {"seed": seed, **record, "conversation": texts}
