"""Rollouts that are no attempt at a problem: loops and gibberish. They can be left out of the update.

A stretch is a run of sampled tokens without a forced or an environment's token in it, so it lies within one turn.
Long healthy text repeats itself, too, and has single tokens of surprise. So the worst part of a stretch is judged, over
a fixed number of tokens, not the whole.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence

import torch

from grpo.batch.branches import get_branches
from grpo.rollout.rows import Sample
from grpo.stack.upstream.arguments import Arguments

logger = logging.getLogger("openrlhf.grpo.degenerate")

NGRAM = 3
LOOP = 512  # tokens over which repetition is judged: a paragraph that repeats itself five times
BABBLE = 64  # tokens over which surprise is judged


def mark(samples: Sequence[Sample], args: Arguments) -> None:
    """Give every rollout ``info["degenerate"]``, 1 or 0, and why; does nothing unless one of the limits is set.

    :func:`grpo.batch.branches.find_left_out` keeps marked rollouts out of the update and of their group's mean.

    Args:
        samples: the rollouts of a step: ``sequences`` ``[1, S]``, ``action_mask`` and ``rollout_log_probs``
            ``[1, S - 1]``.
    """
    for sample in samples:
        flags = {}
        if args.drop_repetition is not None:
            flags["degenerate_repetition"] = worst_repetition(sample) > args.drop_repetition
        if args.drop_gibberish is not None:
            flags["degenerate_gibberish"] = worst_surprise(sample) > args.drop_gibberish
        if flags:
            flags["degenerate"] = any(flags.values())
            sample.info |= {name: torch.tensor([float(flag)]) for name, flag in flags.items()}
    if dropped := sum(bool(sample.info.get("degenerate", False)) for sample in samples):
        logger.warning("%d of %d rollouts are degenerate; the update leaves them out", dropped, len(samples))


def worst_repetition(sample: Sample) -> float:
    """Return the largest :func:`repetition` over LOOP sampled tokens in a row; a shorter stretch counts whole."""
    return max((_most_repetitive(tokens.tolist()) for tokens, _ in _stretches(sample)), default=0.0)


def worst_surprise(sample: Sample) -> float:
    """Return the largest mean surprise over BABBLE sampled tokens in a row, in nat; a shorter stretch counts whole.

    The surprise of a token is its negative log-prob by the engine. Its mean over text that a policy has sampled is the
    policy's entropy: below 1 for a language model that knows what it says, ln(vocabulary), or 12, for random tokens.
    """
    known = (log_probs for _, log_probs in _stretches(sample) if log_probs is not None)
    return max((_most_surprising(log_probs) for log_probs in known), default=0.0)


def _stretches(sample: Sample) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """Yield the stretches of a rollout's rows: tokens ``[T]``, and the engine's log-probs ``[T]`` if it gave any."""
    for row in (*get_branches(sample), sample):
        sampled = row.action_mask[0].nonzero().flatten()
        for at in sampled.tensor_split((sampled.diff() > 1).nonzero().flatten() + 1):
            if len(at):
                yield row.sequences[0, 1:][at], None if row.rollout_log_probs is None else row.rollout_log_probs[0][at]


def _most_repetitive(tokens: Sequence[int]) -> float:
    grams = _grams(tokens)
    size = min(LOOP - NGRAM + 1, len(grams))
    if not size:
        return 0.0
    counts = Counter(grams[:size])
    fewest = len(counts)
    for new, old in zip(grams[size:], grams, strict=False):
        counts[new] += 1
        counts[old] -= 1
        if not counts[old]:
            del counts[old]
        fewest = min(fewest, len(counts))
    return 1 - fewest / size


def _most_surprising(log_probs: torch.Tensor) -> float:
    sums = torch.cat([torch.zeros(1, dtype=torch.float64), -log_probs.double().cumsum(0)])
    size = min(BABBLE, len(log_probs))
    return float((sums[size:] - sums[:-size]).max()) / size


def repetition(tokens: Sequence[int]) -> float:
    """Return the share of a text's 3-grams that occurred earlier in it; 0 if it is too short for two."""
    grams = _grams(tokens)
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def _grams(tokens: Sequence[int]) -> list[tuple[int, ...]]:
    return list(zip(*(tokens[start:] for start in range(NGRAM)), strict=False))
