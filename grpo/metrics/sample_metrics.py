"""Metrics of one step's batch, computed exactly from its rollouts: over tokens or over rollouts, whichever fits.

:mod:`grpo.metrics.metric_schema` gives names, units and healthy ranges. A metric undefined for a batch (a correlation
without spread, a quality without judged rollouts) is left out.
"""

from collections.abc import Sequence

import torch

from grpo.rollout.response_text import FINAL_HEADER, answer_length
from grpo.rollout.rows import Batch, group_rows
from grpo.stack.upstream.tokenizer import Tokenizer

NGRAM = 3
_JUDGED = ("judge_quality", "judge_calls", "judge_cached", "judge_failed")


def repetition(tokens: Sequence[int]) -> float:
    """Return the share of a text's 3-grams that occurred earlier in it; 0 if it is too short for two."""
    grams = list(zip(*(tokens[start:] for start in range(NGRAM)), strict=False))
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


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
    logged = _read_info(experiences, "reward")
    rewards = torch.cat([experience.rewards for experience in experiences]).double() if logged is None else logged
    missing = _read_info(experiences, "reward_missing")  # these carry the mean of the others instead of a reward
    known = torch.ones(len(rewards), dtype=torch.bool) if missing is None else missing < 0.5
    masked = _read_info(experiences, "masked_rollouts")
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
        **_parts(experiences, responses, tokenizer),
        **_honesty(experiences, rewards),
    }
    return {name: float(value) for name, value in metrics.items() if value is not None}


def _honesty(experiences: Sequence[Batch], rewards: torch.Tensor) -> dict[str, torch.Tensor | None]:
    """Return whether the reward follows correctness, and how the judge rates right and wrong rollouts."""
    columns = {name: _read_info(experiences, name) for name in ("correct", "reward_missing", "reward_error", *_JUDGED)}
    if columns["correct"] is None:
        return {}
    known = torch.ones_like(rewards, dtype=torch.bool)
    for name in ("reward_missing", "reward_error"):  # these carry means of the others instead of their own numbers
        if (missing := columns[name]) is not None:
            known &= missing < 0.5
    correct, rewards = columns["correct"][known], rewards[known]
    right = correct > 0.5
    metrics = {"reward_correct_correlation": correlation(rewards, correct) if len(rewards) else None}
    if (cut := _read_info(experiences, "truncated")) is not None and (whole := cut[known] < 0.5).any():
        metrics["correct_whole"] = correct[whole].mean()
    if right.any():
        high = rewards >= rewards[right].quantile(0.5)
        metrics["high_reward_wrong"] = (high & ~right).double().sum() / high.double().sum()
    judged = [columns[name] for name in _JUDGED]
    if all(column is not None for column in judged):
        quality, calls, cached, failed = (column[known] for column in judged if column is not None)
        is_judged = (calls + cached > 0) & (failed < 0.5)
        for name, part in (("right", right & is_judged), ("wrong", ~right & is_judged)):
            metrics[f"judge_quality_{name}"] = quality[part].mean() if part.any() else None
    return metrics


def _read_info(experiences: Sequence[Batch], name: str) -> torch.Tensor | None:
    if not all(name in experience.info for experience in experiences):
        return None
    return torch.cat([torch.as_tensor(experience.info[name]).reshape(-1) for experience in experiences]).double()


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


def _parts(
    experiences: Sequence[Batch], responses: Sequence[Sequence[int]], tokenizer: Tokenizer | None
) -> dict[str, torch.Tensor | None]:
    """Return the lengths of thinking and answer, unless the rollout has logged them."""
    if tokenizer is None or _read_info(experiences, "thinking_length") is not None:
        return {}
    header = tokenizer.encode(FINAL_HEADER, add_special_tokens=False)
    if header[0] not in tokenizer.added_tokens_decoder:  # a model with another template
        return {}
    answers = [answer_length(tokens, header) for tokens in responses]
    thinking = [len(tokens) - (answer or 0) for tokens, answer in zip(responses, answers, strict=True)]
    final = [answer for answer in answers if answer is not None]
    return {
        "thinking_length": torch.tensor(thinking).double().mean(),
        "answer_length": torch.tensor(final).double().mean() if final else None,
    }
