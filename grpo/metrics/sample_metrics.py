"""Metrics of one step's batch, computed exactly from its rollouts: over tokens or over rollouts, whichever fits.

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
READ = (
    *JUDGED,
    "correct",
    "reward",
    "reward_missing",
    "reward_error",
    "truncated",
    "masked_rollouts",
    "thinking_length",
)
Columns = Mapping[str, torch.Tensor]  # float64 [N] by name, one number a rollout


def repetition(tokens: Sequence[int]) -> float:
    """Return the share of a text's 3-grams that occurred earlier in it; 0 if it is too short for two."""
    grams = list(zip(*(tokens[start:] for start in range(NGRAM)), strict=False))
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def read_columns(experiences: Sequence[Batch], wanted: Sequence[str] | None = None) -> dict[str, torch.Tensor]:
    """Return the values that every rollout logs, by name; only those that are wanted, if not None."""
    names = set.intersection(*(set(experience.info) for experience in experiences))
    names &= names if wanted is None else set(wanted)
    return {
        name: torch.cat([torch.as_tensor(experience.info[name]).double().reshape(-1) for experience in experiences])
        for name in sorted(names)
    }


def experience_metrics(experiences: Sequence[Batch], tokenizer: Tokenizer | None = None) -> dict[str, float]:
    """Return the metrics of one step's batch.

    Args:
        experiences: OpenRLHF's, with advantages: ``sequences`` ``[B, S]``, ``advantages`` and
            ``action_mask`` ``[B, S - 1]``, ``rewards`` ``[B]``, ``index`` (number of each rollout in the step),
            ``info`` with ``[B]`` by name. A rollout with ``branches`` counts once, with the tokens of all of them.
        tokenizer: the model's, to tell thinking from answer; None leaves their lengths out.
    """
    # Experiences are padded to different lengths, so token quantities are summed per rollout first.
    sampled = [_select_sampled(experience, rows) for experience in experiences for rows in group_rows(experience)]
    sampled = [one for one in sampled if one[0]] or sampled  # a rollout without a reward has no trained tokens
    responses = [tokens for tokens, _ in sampled]
    lengths = torch.tensor([len(tokens) for tokens in responses], dtype=torch.float64)
    sums = torch.stack([advantages.double().sum() for _, advantages in sampled])
    advantages = sums / lengths.clamp(min=1)
    columns = read_columns(experiences, READ)
    rewards = columns.get("reward", torch.cat([experience.rewards for experience in experiences]).double())
    known = _find_known(columns, rewards, "reward_missing")
    masked = columns.get("masked_rollouts")
    metrics = {
        "advantage_mean": advantages.mean(),
        "masked_rollouts": None if masked is None else masked.sum(),
        "reward_std": rewards[known].std(correction=0) if known.any() else None,
        "token_advantage_mean": sums.sum() / lengths.sum().clamp(min=1),
        "advantage_length_correlation": correlation(advantages, lengths),
        "response_length_p50": lengths.quantile(0.5) if lengths.any() else None,
        "response_length_p90": lengths.quantile(0.9) if lengths.any() else None,
        "sampled_tokens": lengths.sum(),
        "repetition": torch.tensor([repetition(tokens) for tokens in responses], dtype=torch.float64).mean(),
    }
    if tokenizer is not None and "thinking_length" not in columns:
        metrics |= _parts(responses, tokenizer)
    if "correct" in columns:
        metrics |= _honesty(columns, rewards)
    return {name: float(value) for name, value in metrics.items() if value is not None}


def _find_known(columns: Columns, rewards: torch.Tensor, *names: str) -> torch.Tensor:
    """Return which rollouts have numbers of their own: those marked under these names carry means of the others."""
    known = torch.ones_like(rewards, dtype=torch.bool)
    for name in names:
        known &= columns.get(name, torch.zeros_like(rewards)) < 0.5
    return known


def _honesty(columns: Columns, rewards: torch.Tensor) -> dict[str, torch.Tensor | None]:
    """Return whether the reward follows correctness, and how the judge rates right and wrong rollouts."""
    known = _find_known(columns, rewards, "reward_missing", "reward_error")
    correct, rewards = columns["correct"][known], rewards[known]
    right = correct > 0.5
    metrics = {"reward_correct_correlation": correlation(rewards, correct) if len(rewards) else None}
    if "truncated" in columns and (whole := columns["truncated"][known] < 0.5).any():
        metrics["correct_whole"] = correct[whole].mean()
    if right.any():
        high = rewards >= rewards[right].quantile(0.5)
        metrics["high_reward_wrong"] = (high & ~right).double().sum() / high.double().sum()
    if columns.keys() >= set(JUDGED):
        quality, calls, cached, failed = (columns[name][known] for name in JUDGED)
        is_judged = (calls + cached > 0) & (failed < 0.5)
        for name, part in (("right", right & is_judged), ("wrong", ~right & is_judged)):
            metrics[f"judge_quality_{name}"] = quality[part].mean() if part.any() else None
    return metrics


def correlation(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    """Return Pearson's correlation of two ``[N]``; None if either has no spread."""
    a, b = a - a.mean(), b - b.mean()
    scale = a.norm() * b.norm()
    return (a * b).sum() / scale if scale > 1e-12 else None


def _select_sampled(batch: Batch, rows: Sequence[int]) -> tuple[list[int], torch.Tensor]:
    """Return the sampled tokens of a rollout, and the advantage of each."""
    tokens, advantages = [], []
    for row in rows:
        mask = batch.action_mask[row].bool()
        tokens += batch.sequences[row, 1:][: len(mask)][mask].tolist()
        advantages.append(batch.advantages[row][mask])
    return tokens, torch.cat(advantages)


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
