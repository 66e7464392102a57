"""What a held-out evaluation measures: exact match by our grader, or the score of a reward of the user's own.

A line of eval.jsonl has the number under one of two names, `exact_match` or `score`.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo.environments.settings import has_environment
from grpo.rollout import thinking
from grpo.stack.checkout import CHECKOUT
from grpo.stack.upstream import Arguments

EXACT_MATCH, SCORE = "exact_match", "score"
NAMES = {EXACT_MATCH: "exact match", SCORE: "score"}
OUR_REWARD = CHECKOUT / "reward" / "reward_func.py"
USER_REWARD = CHECKOUT / "reward" / "user_reward.py"


def choose_eval_metric(args: Arguments) -> str:
    """Return the metric of a run's evaluations. An environment says itself which rollouts are correct."""
    # OpenRLHF replaces the reward of an executor by "agent"; the executor of a thinking budget has it in its settings.
    budget = thinking.read_settings(os.environ) if args.remote_rm_url in ("agent", ["agent"]) else None
    source = budget.reward if budget else args.remote_rm_url  # a file or an address, or a list of them
    first = source[0] if isinstance(source, list) and source else source
    is_ours = not first or Path(first).resolve() == OUR_REWARD
    return EXACT_MATCH if has_environment(args) or is_ours else SCORE


def read_eval_metric(row: Mapping[str, Any]) -> str:
    """Return the metric of a line of eval.jsonl, or of an evaluation's result."""
    return SCORE if SCORE in row else EXACT_MATCH


def get_name(row: Mapping[str, Any]) -> str:
    """Return what people call the number that an evaluation measured. An environment itself says what is solved."""
    metric = read_eval_metric(row)
    return "solved" if metric == EXACT_MATCH and row.get("in_environment") else NAMES[metric]


def get_value(row: Mapping[str, Any]) -> Any:
    """Return the number that an evaluation measured; None if it graded nothing."""
    return row.get(read_eval_metric(row))


def keep_last_eval_metric(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the evaluations that measured what the last one did; only those can be compared with it.

    A run that was resumed with another reward also has others.
    """
    return [row for row in rows if read_eval_metric(row) == read_eval_metric(rows[-1])]


def is_whole(row: Mapping[str, Any]) -> bool:
    """Return whether every problem of an evaluation was graded. Only then do two of them measure the same problems."""
    problems = row.get("problems")  # older runs lack it
    return problems is None or row.get("n") == problems
