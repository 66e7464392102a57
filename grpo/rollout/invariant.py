"""Checks that the engine's tokens equal the trained tokens: for every turn, and again in the trainer.

A mismatch names the first differing position with its context, and is counted (``token_mismatch``). If the engine has
changed a prompt, the turn begins a new row with the engine's tokens. A turn without log-probs is not trained on.
Nothing is encoded again.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from grpo.rollout.rows import Rows

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput

CONTEXT = 8  # tokens on each side

Decode = Callable[[Sequence[int]], str]


def first_difference(given: Sequence[object], kept: Sequence[object]) -> int | None:
    """Return the first index where two sequences differ, including their ends; None if they are equal."""
    for index, (a, b) in enumerate(zip(given, kept, strict=False)):
        if a != b:
            return index
    return None if len(given) == len(kept) else min(len(given), len(kept))


def describe(what: str, given: Sequence[int], kept: Sequence[int], decode: Decode) -> str | None:
    """Describe where tokens differ from the engine's, with context; None if they do not."""
    index = first_difference(given, kept)
    if index is None:
        return None
    begin = max(0, index - CONTEXT)
    return (
        f"{what} differs first at position {index}, after {decode(given[begin:index])!r}: the engine had "
        f"{decode(given[index : index + CONTEXT])!r}, we have {decode(kept[index : index + CONTEXT])!r} "
        f"({len(given)} and {len(kept)} tokens)"
    )


def read_log_probs(output: "CompletionOutput") -> list[float] | None:
    """Return the engine's log-prob of each sampled token; None if one is missing or not a number.

    Args:
        output: vLLM's ``CompletionOutput``.
    """
    tokens = list(output.token_ids)
    if output.logprobs is None or len(output.logprobs) != len(tokens):
        return None
    sampled = [choices.get(token) for token, choices in zip(tokens, output.logprobs, strict=True)]
    return validate_log_probs([float("nan") if choice is None else float(choice.logprob) for choice in sampled])


def validate_log_probs(log_probs: list[float]) -> list[float] | None:
    """Return the log-probs of sampled tokens if each is finite and at most 0, up to rounding; else None."""
    return log_probs if all(-float("inf") < value < 1e-3 for value in log_probs) else None


class EngineAccount:
    """The engine's record of one row, kept apart from the row: its last prompt and what it sampled."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ranges: list[tuple[int, int]] = []
        self.log_probs: list[float] = []

    def note(self, prompt: Sequence[int], sampled: Sequence[int], log_probs: Sequence[float] | None) -> None:
        """Note one call. Its prompt contains everything noted before, unless the row has branched."""
        self.tokens = [*prompt, *sampled]
        if log_probs is not None:
            self.ranges.append((len(prompt), len(self.tokens)))
            self.log_probs += log_probs

    def as_dict(self) -> dict[str, Any]:
        """Return the account as a dictionary, for the trainer."""
        return {"tokens": self.tokens, "ranges": self.ranges, "log_probs": self.log_probs}


def missing_log_prob(experience: Rows) -> str | None:
    """Name the first sampled token without a log-prob of the engine (NaN), and replace NaN with 0 for the arithmetic.

    Returns None if every sampled token has one, or none were requested.
    """
    if experience.rollout_log_probs is None:
        return None
    missing = experience.rollout_log_probs.isnan()
    experience.rollout_log_probs = experience.rollout_log_probs.nan_to_num(nan=0.0)
    sampled = torch.nonzero(missing[0] & experience.action_mask[0].bool()).flatten()
    return f"the engine returned no log-prob for the token at position {int(sampled[0]) + 1}" if len(sampled) else None


def check_experience(experience: Rows, account: dict[str, Any], decode: Decode) -> str | None:
    """Compare the trainer's version of a row with the engine's account.

    Args:
        experience: OpenRLHF's ``Experience`` of one row: ``sequences`` ``[1, S]``, ``action_mask`` and
            ``rollout_log_probs`` ``[1, S - 1]``.
        account: see :meth:`EngineAccount.as_dict`.

    Returns:
        Where they differ; None if the trained tokens are the engine's.
    """
    tokens = experience.sequences[0].tolist()

    def quote_before(position: int) -> str:
        return f"after {decode(tokens[max(0, position - CONTEXT) : position])!r}"

    if mismatch := describe("a row", account["tokens"], tokens, decode):
        return mismatch
    wanted = [position for start, end in account["ranges"] for position in range(start, end)]
    trained = (torch.nonzero(experience.action_mask[0]).flatten() + 1).tolist()
    if (at := first_difference(wanted, trained)) is not None:
        position = (wanted + trained)[at] if at >= min(len(wanted), len(trained)) else min(wanted[at], trained[at])
        return f"the action mask differs first at position {position}, {quote_before(position)}"
    if experience.rollout_log_probs is None:
        return "the engine's log-probs are missing"
    mine = experience.rollout_log_probs[0][experience.action_mask[0].bool()]
    theirs = torch.tensor(account["log_probs"], dtype=mine.dtype)
    if (at := first_difference(mine.tolist(), theirs.tolist())) is not None:
        return f"the log-prob differs first at position {trained[at]}, {quote_before(trained[at])}"
    return None
