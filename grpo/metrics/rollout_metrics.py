"""Metrics of one step's rollouts, computed exactly: over tokens or over rollouts, whichever fits.

:mod:`grpo.metrics.metric_schema` gives names, units and healthy ranges. A metric undefined for a batch (a correlation
without spread, a quality without judged rollouts) is left out.
"""

from collections.abc import Mapping, Sequence

import torch

from grpo.rollout.response_text import FINAL_HEADER, answer_length
from grpo.rollout.rows import Batch, group_rows
from grpo.stack.upstream import Tokenizer

NGRAM = 3
JUDGED = ("judge_quality", "judge_calls", "judge_cached", "judge_failed")
Columns = Mapping[str, torch.Tensor]  # float64 [N] by name, one number a rollout


def at_sampled(batches: Sequence[Batch], name: str) -> dict[int, torch.Tensor]:
    """Return each rollout's part of a ``[B, A]`` tensor, or of ``sequences``, at its sampled tokens: ``[T]`` by index.

    A rollout with branches has the tokens of all its rows, the earliest first.
    """
    found = {}
    for batch in batches:
        values, mask = getattr(batch, name), batch.action_mask.bool()
        if values is None:
            continue
        if name == "sequences":
            values = values[:, 1:]  # column t predicts token t + 1
        for index, rows in zip(batch.index, group_rows(batch), strict=False):  # the rollouts come first
            found[index] = torch.cat([values[row][mask[row]] for row in rows])
    return found


def read_column(batches: Sequence[Batch], name: str) -> torch.Tensor | None:
    """Return what rollouts log under a name, float64 ``[N]``; None unless all do."""
    if any(name not in batch.info for batch in batches):
        return None
    return torch.cat([torch.as_tensor(batch.info[name]).double().reshape(-1) for batch in batches])


def rollout_metrics(batches: Sequence[Batch], tokenizer: Tokenizer | None = None) -> dict[str, float]:
    """Return the metrics of one step's rollouts.

    Args:
        batches: the step's, with advantages. A rollout with branches counts once, with the tokens of all of them.
        tokenizer: the model's, to tell thinking from answer; None leaves their lengths out.
    """
    # Micro-batches are padded to different lengths, so token quantities are summed per rollout first.
    tokens, advantages = at_sampled(batches, "sequences"), at_sampled(batches, "advantages")
    # A rollout without a reward has no trained tokens.
    kept = [index for index in tokens if len(tokens[index])] or list(tokens)
    responses = [tokens[index].tolist() for index in kept]
    lengths = torch.tensor([len(response) for response in responses], dtype=torch.float64)
    sums = torch.stack([advantages[index].double().sum() for index in kept])
    means = sums / lengths.clamp(min=1)
    rewards = read_column(batches, "reward")
    if rewards is None:
        rewards = torch.cat([batch.rewards for batch in batches]).double()
    known = _is_known(batches, rewards, "reward_missing")
    masked = read_column(batches, "masked_rollouts")
    metrics = {
        "advantage_mean": means.mean(),
        "masked_rollouts": None if masked is None else masked.sum(),
        "reward_std": rewards[known].std(correction=0) if known.any() else None,
        "token_advantage_mean": sums.sum() / lengths.sum().clamp(min=1),
        "advantage_length_correlation": correlation(means, lengths),
        "response_length_p50": lengths.quantile(0.5) if lengths.any() else None,
        "response_length_p90": lengths.quantile(0.9) if lengths.any() else None,
        "sampled_tokens": lengths.sum(),
        "repetition": torch.tensor([repetition(response) for response in responses], dtype=torch.float64).mean(),
    }
    if tokenizer is not None and read_column(batches, "thinking_length") is None:
        metrics |= _parts(responses, tokenizer)
    metrics |= _honesty(batches, rewards)
    return {name: float(value) for name, value in metrics.items() if value is not None}


def repetition(tokens: Sequence[int]) -> float:
    """Return the share of a text's 3-grams that occurred earlier in it; 0 if it is too short for two."""
    grams = list(zip(*(tokens[start:] for start in range(NGRAM)), strict=False))
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def correlation(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    """Return Pearson's correlation of two ``[N]``; None if either has no spread."""
    a, b = a - a.mean(), b - b.mean()
    scale = a.norm() * b.norm()
    return (a * b).sum() / scale if scale > 1e-12 else None


def _is_known(batches: Sequence[Batch], rewards: torch.Tensor, *names: str) -> torch.Tensor:
    """Return which rollouts have numbers of their own: those marked under these names carry means of the others."""
    marks = [mark for name in names if (mark := read_column(batches, name)) is not None]
    return torch.stack([mark < 0.5 for mark in marks]).all(0) if marks else torch.ones_like(rewards, dtype=torch.bool)


def _honesty(batches: Sequence[Batch], rewards: torch.Tensor) -> dict[str, torch.Tensor | None]:
    """Return whether the reward follows correctness, and how the judge rates right and wrong rollouts."""
    correct, truncated = read_column(batches, "correct"), read_column(batches, "truncated")
    if correct is None:
        return {}
    known = _is_known(batches, rewards, "reward_missing", "reward_error")
    correct, rewards = correct[known], rewards[known]
    right = correct > 0.5
    metrics = {"reward_correct_correlation": correlation(rewards, correct) if len(rewards) else None}
    if truncated is not None and (whole := truncated[known] < 0.5).any():
        metrics["correct_whole"] = correct[whole].mean()
    if right.any():
        high = rewards >= rewards[right].quantile(0.5)
        metrics["high_reward_wrong"] = (high & ~right).double().sum() / high.double().sum()
    judged = [column[known] for name in JUDGED if (column := read_column(batches, name)) is not None]
    if len(judged) == len(JUDGED):
        quality, calls, cached, failed = judged
        is_judged = (calls + cached > 0) & (failed < 0.5)
        for name, part in (("right", right & is_judged), ("wrong", ~right & is_judged)):
            metrics[f"judge_quality_{name}"] = quality[part].mean() if part.any() else None
    return metrics


def _parts(responses: Sequence[Sequence[int]], tokenizer: Tokenizer) -> dict[str, torch.Tensor | None]:
    """Return the lengths of thinking and answer; {} for a model with another template."""
    header = tokenizer.encode(FINAL_HEADER, add_special_tokens=False)
    if header[0] not in tokenizer.added_tokens_decoder:
        return {}
    answers = [answer_length(tokens, header) for tokens in responses]
    thinking = [len(tokens) - (answer or 0) for tokens, answer in zip(responses, answers, strict=True)]
    final = [answer for answer in answers if answer is not None]
    return {
        "thinking_length": torch.tensor(thinking).double().mean(),
        "answer_length": torch.tensor(final).double().mean() if final else None,
    }
