"""The reward that OpenRLHF calls for every rollout: is the final answer correct, and how good is the reasoning?

`reward = --correctness_weight * correctness + --quality_weight * quality`, if a judge (`reward.judge`) is configured;
otherwise correctness alone. Samples of an evaluation are never judged: their reward is correctness alone. A
response without a final answer has correctness 0; --judge_unfinished decides whether the judge scores its
reasoning. An empty response has quality 0 and is not sent.

OpenRLHF loads this file by its path in each engine, so the checkout must be on PYTHONPATH. It calls
`reward_func` in a thread, one rollout at a time. Nothing raises here: OpenRLHF turns an exception into a
missing reward that breaks the batch later. A rollout that could not be graded says so in `reward_error`, and its
other values are NaN: `grpo.train.rewards.complete` counts it, and the update leaves it out. A rollout that could not
be judged says so in `judge_failed`, and --judge_fallback decides its reward. Under "mean_quality" that is NaN until a
mean is known, which `grpo.train.rewards.complete` treats as above.
"""

import functools
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from math import nan
from typing import Any

from reward import equivalence, judge_actor, settings
from reward.answers import NO_FINAL, grade, parse_label
from reward.judge import Verdict, extract_problem

logger = logging.getLogger(__name__)

LOG_KEYS = ("correct", "answered", "has_final", "reward_error", "reward_seconds")

_ASSISTANT = "<|start|>assistant"
_OTHER_ROLE = re.compile(r"<\|start\|>(?!assistant)")
_MESSAGE_CLOSED = re.compile(r"<\|(?:end|return|call)\|>")

# How much of the prompt's end identifies the place where it ends, and by how many characters decoding may
# have lengthened a prompt.
_TAIL_CHARS = 200
_SLACK_CHARS = 64

_logged_kinds: set[str] = set()


def reward_func(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]) -> dict[str, Any]:
    """Rewards n rollouts: `queries` are prompt + response with special tokens, `prompts` the prompts as sent.

    Returns `rewards`, `scores` (correctness: 0.0 or 1.0, NaN where grading failed) and `extra_logs` (LOG_KEYS, and
    those of :class:`reward.judge.Verdict` if a judge is configured).
    Each value is a list of n floats. For one rollout, which is what OpenRLHF sends, it is a float: OpenRLHF wraps it in
    `torch.tensor([value])`, where a list would add a dimension.
    """
    samples = [_reward_one(queries, prompts, labels, i) for i in range(len(queries))]

    def column(key: str) -> float | list[float]:
        values = [sample[key] for sample in samples]
        return values[0] if len(values) == 1 else values

    return {
        "rewards": column("reward"),
        "scores": column("correct"),
        "extra_logs": {key: column(key) for key in (*LOG_KEYS, *(Verdict().logs() if _has_judge() else ()))},
    }


def _reward_one(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], i: int) -> dict[str, float]:
    """The reward and the logs of one rollout; a failure is marked, never mistaken for a wrong answer."""
    started = time.monotonic()
    try:
        label = parse_label(labels[i])
        response = extract_response(queries[i], prompts[i])
        result = grade(response, label.answer, extract_problem(prompts[i]))
    except Exception as error:  # the boundary to OpenRLHF: see the module's docstring
        _log_once(error, "could not be graded and counts as reward_error")
        unknown = dict.fromkeys(("reward", "correct", "answered", "has_final"), nan)
        return {**unknown, "reward_error": 1.0, "reward_seconds": time.monotonic() - started, **Verdict().logs()}
    correct = float(result.correct)
    reward, verdict = correct, Verdict()
    if label.split == "train" and _has_judge():
        reward, verdict = _judge_one(prompts[i], response, label.answer, correct, result.answer is not None)
    return {
        "reward": reward,
        "correct": correct,
        "answered": float(result.answer is not None),
        "has_final": float(result.reason != NO_FINAL),
        "reward_error": 0.0,
        "reward_seconds": time.monotonic() - started,
        **verdict.logs(),
    }


def _judge_one(prompt: str, response: str, gold: str, correct: float, is_answered: bool) -> tuple[float, Verdict]:
    """The blended reward of a training rollout, and its verdict."""
    try:
        return _judge()(correct, extract_problem(prompt), response, gold, is_answered)
    except Exception as error:  # no key, no run directory, a full disk: the same boundary
        _log_once(error, "could not be judged and counts in judge_failed")
        is_mean = settings.variables().get("JUDGE_FALLBACK") == "mean_quality"
        return nan if is_mean else correct, Verdict(failed=1.0)


@functools.cache
def _has_judge() -> bool:
    """Whether there is a judge. Invalid settings, which the preflight refuses, count as one that fails."""
    try:
        return settings.from_environment() is not None
    except settings.SettingsError:
        return True


_judge_lock = threading.Lock()
_found_judge = functools.cache(judge_actor.find_judge)


def _judge() -> Callable[..., tuple[float, Verdict]]:
    """Return the function that asks the judge, found once in this process."""
    with _judge_lock:
        return _found_judge()


def extract_response(query: str, prompt: str) -> str:
    """The model's own text, which is the part of `query` after `prompt`.

    The first rule that fits decides:
    1. The query starts with the prompt.
    2. The prompt was cut at its start, or decoding changed it: its last 200 characters (or half of it)
       mark its end. They are looked for no further than the prompt can reach: a response may quote them.
    3. Otherwise, the response is all assistant messages after the last one of another role. A harmony
       response has several (analysis, then final).
    If the prompt opens the assistant's message further (`<|start|>assistant<|channel|>final<|message|>`),
    that header belongs to the response. Raises ValueError when no rule fits.
    """
    header = _open_header(prompt)
    if query.startswith(prompt):
        return header + query[len(prompt) :]
    tail = prompt[-min(_TAIL_CHARS, (len(prompt) + 1) // 2) :]
    at = query.rfind(tail, 0, len(prompt) + _SLACK_CHARS)
    if at >= 0:
        return header + query[at + len(tail) :]
    last_other = 0
    for match in _OTHER_ROLE.finditer(query):
        last_other = match.end()
    at = query.find(_ASSISTANT, last_other)
    if at < 0:
        raise ValueError("the query contains neither the prompt nor an assistant turn, so the response is unknown")
    return query[at + len(_ASSISTANT) :]


def _open_header(prompt: str) -> str:
    """The part of the assistant's message that the prompt already holds, mostly nothing."""
    at = prompt.rfind(_ASSISTANT)
    begun = prompt[at + len(_ASSISTANT) :] if at >= 0 else ""
    return "" if _MESSAGE_CLOSED.search(begun) or _OTHER_ROLE.search(begun) else begun


def _log_once(error: Exception, what: str) -> None:
    """Logs the first error of each kind; the rest are counted."""
    kind = f"{type(error).__name__}: {error}"
    if kind not in _logged_kinds and len(_logged_kinds) < 100:
        _logged_kinds.add(kind)
        logger.error("a rollout %s: %s", what, kind, exc_info=error)


# An engine loads this file long before it has a first response to grade.
equivalence.warm_up()
