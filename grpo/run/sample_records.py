"""The records of samples/step_N.jsonl: what a step sampled, the rewards, and which rollouts to read first."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from grpo.rollout.response_text import decode_tokens
from grpo.rollout.rows import Sample, get_branches
from grpo.rollout.trajectory import response_tokens
from grpo.run.records import read_answer
from grpo.stack.upstream import Tokenizer
from reward.answers import parse_label

Record = dict[str, Any]


def describe_samples(
    samples: Sequence[Sample],
    tokenizer: Tokenizer,
    limit: int | None = None,
    problems: Mapping[str, dict[str, str]] | None = None,
) -> list[Record]:
    """Return the records of the first rollouts of a step, and always of its extremes (see :func:`extremes`).

    A record has:

    - `id` and `datasource` of the problem, `label`, `gold`, `prompt` and `prompt_length`;
    - `sample` (its index in the step), `response` (with special tokens), `answer` (None if none can be extracted);
    - `extremes`, what it is the extreme of;
    - `token_ids` of each of its rows, prompt included, branches first: a text can encode to other tokens;
    - `conversation` for rollouts in an environment, the whole text of each of these rows;
    - all logs of the reward function, and the `details` of :mod:`grpo.metrics.step_metrics`.

    A number that :func:`grpo.train.rewards.complete` filled in for the step's mean is None.

    Args:
        limit: the number besides the extremes; None for all.
        problems: id and data source by prompt; a prompt without them lacks both.
    """
    logs = [
        {**numbers(sample), **getattr(sample, "details", {}), **dict.fromkeys(getattr(sample, "missing", ()))}
        for sample in samples
    ]
    why = extremes(logs)
    return [
        {
            **(problems or {}).get(sample.prompts[0], {}),
            **_describe(index, sample, tokenizer, logs[index]),
            "extremes": why.get(index, []),
        }
        for index, sample in enumerate(samples)
        if limit is None or index < limit or index in why
    ]


def _describe(index: int, sample: Sample, tokenizer: Tokenizer, logs: dict[str, Any]) -> Record:
    tokens = response_tokens(sample)
    response = decode_tokens(tokenizer, tokens)
    rows = list_token_ids(sample)
    return {
        "sample": index,
        "prompt": sample.prompts[0],
        "response": response,
        "label": sample.labels[0],
        "gold": gold(sample.labels[0]),
        "answer": read_answer({"id": "the step", "sample": index, "response": response})["answer"],
        "prompt_length": int(sample.attention_mask.sum()) - len(tokens),
        **({"conversation": [decode_tokens(tokenizer, row) for row in rows]} if hasattr(sample, "branches") else {}),
        "token_ids": rows,
        **logs,
    }


def list_token_ids(sample: Sample) -> list[list[int]]:
    """Return the tokens of each row of a rollout, prompt included, branches first."""
    return [row.sequences[row.attention_mask.bool()].tolist() for row in (*get_branches(sample), sample)]


def gold(label: Any) -> Any:
    """Return the gold answer of a label; a label of another form is returned unchanged."""
    try:
        return parse_label(label).answer
    except ValueError:  # a label for a custom reward function
        return label


def extremes(logs: Sequence[dict[str, Any]]) -> dict[int, list[str]]:
    """Return the places of the rollouts to read first, and what each is the extreme of.

    Args:
        logs: one per rollout; missing or None numbers are skipped.
    """
    everyone = range(len(logs))
    wrong, right = ([index for index in everyone if logs[index].get("correct") == value] for value in (0, 1))
    ungraded = [] if wrong or right else everyone
    reasons: dict[int, list[str]] = {}
    for why, indices, name, size in (
        ("highest reward of the wrong ones", wrong, "reward", float),
        ("lowest reward of the right ones", right, "reward", operator.neg),
        ("highest reward", ungraded, "reward", float),
        ("lowest reward", ungraded, "reward", operator.neg),
        ("longest", everyone, "response_length", float),
        ("most surprising", everyone, "surprisal", float),
        ("largest loss", everyone, "micro_batch_loss", abs),
        ("least likely token", everyone, "lowest_log_prob", operator.neg),
        ("largest mismatch", everyone, "logprob_diff_max", float),
    ):
        known = [(size(value), index) for index in indices if (value := logs[index].get(name)) is not None]
        if known:
            reasons.setdefault(max(known, key=operator.itemgetter(0))[1], []).append(why)
    return reasons


def numbers(sample: Sample) -> dict[str, float]:
    """Return the logs of a rollout."""
    return {name: float(value[0]) for name, value in sample.info.items()}
