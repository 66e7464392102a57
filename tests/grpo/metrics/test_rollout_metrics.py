"""The metrics of a rollout against NumPy's float64, sample by sample, for any batching."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo.metrics.rollout_metrics import rollout_metrics
from grpo.run.run_log import rolling_correlation

GROUP = 4


def draw_samples(seed: int, count: int = 16) -> list[dict]:
    """Samples as drawn: tokens, prompt length, reward, advantage and the logs of the reward function."""
    draw = np.random.default_rng(seed)
    samples = []
    for _ in range(count):
        correct = float(draw.random() < 0.5)
        quality = round(float(draw.random()), 3)
        samples.append(
            {
                "prompt": draw.integers(0, 9, draw.integers(1, 5)).tolist(),
                "response": draw.integers(0, 3, draw.integers(1, 30)).tolist(),
                "reward": round(0.6 * correct + 0.4 * quality, 6),
                "correct": correct,
                "judge_quality": quality,
                "judge_calls": 1.0,
                "judge_cached": 0.0,
                "judge_failed": float(draw.random() < 0.1),
                "truncated": float(draw.random() < 0.4),
            }
        )
    rewards = np.array([sample["reward"] for sample in samples]).reshape(-1, GROUP)
    for sample, advantage in zip(samples, (rewards - rewards.mean(-1, keepdims=True)).reshape(-1), strict=True):
        sample["advantage"] = advantage
    return samples


def make_batches(samples: list[dict], order: list[int], size: int) -> list[SimpleNamespace]:
    """OpenRLHF's batches of so many samples in that order: padded on the right."""
    batches = []
    for rows in (order[start : start + size] for start in range(0, len(order), size)):
        batch = [samples[row] for row in rows]
        length = max(len(sample["prompt"]) + len(sample["response"]) for sample in batch)
        sequences, mask = torch.zeros(len(rows), length, dtype=torch.long), torch.zeros(len(rows), length - 1)
        for number, sample in enumerate(batch):
            begin, tokens = len(sample["prompt"]), sample["prompt"] + sample["response"]
            sequences[number, : len(tokens)] = torch.tensor(tokens)
            mask[number, begin - 1 : len(tokens) - 1] = 1
        batches.append(
            SimpleNamespace(
                sequences=sequences,
                action_mask=mask,
                advantages=torch.tensor([[sample["advantage"]] for sample in batch]).float() * mask,
                rewards=torch.tensor([sample["reward"] for sample in batch]),
                index=rows,
                prompts=rows,
                info={
                    name: torch.tensor([sample[name] for sample in batch])
                    for name in ("correct", "judge_quality", "judge_calls", "judge_cached", "judge_failed", "truncated")
                },
            )
        )
    return batches


@given(st.integers(0, 10_000), st.integers(1, 16), st.randoms(use_true_random=False))
def test_sample_metrics_match_float64_in_any_order_and_batching(seed, size, random):
    samples = draw_samples(seed)
    order = list(range(len(samples)))
    random.shuffle(order)
    metrics = rollout_metrics(make_batches(samples, order, size))

    names = samples[0].keys() - {"prompt", "response"}
    column = {name: np.array([sample[name] for sample in samples]) for name in names}
    length = np.array([len(sample["response"]) for sample in samples], dtype=float)
    right, judged = column["correct"] == 1, column["judge_failed"] == 0
    grams = [list(zip(r, r[1:], r[2:], strict=False)) for r in (sample["response"] for sample in samples)]
    expected = {
        "advantage_mean": column["advantage"].mean(),
        "reward_std": column["reward"].std(),
        "token_advantage_mean": np.average(column["advantage"], weights=length),
        "response_length_p50": np.percentile(length, 50),
        "response_length_p90": np.percentile(length, 90),
        "sampled_tokens": length.sum(),
        "repetition": np.mean([1 - len(set(one)) / len(one) if one else 0.0 for one in grams]),
    }
    if (whole := column["truncated"] == 0).any():
        expected["correct_whole"] = right[whole].mean()
    if right.any():
        high = column["reward"].astype(np.float32) >= np.median(column["reward"][right].astype(np.float32))
        expected["high_reward_wrong"] = (high & ~right).sum() / high.sum()
    for name, part in (("right", right & judged), ("wrong", ~right & judged)):
        if part.any():
            expected[f"judge_quality_{name}"] = column["judge_quality"][part].mean()
    for name, a, b in (
        ("advantage_length_correlation", column["advantage"], length),
        ("reward_correct_correlation", column["reward"], column["correct"]),
    ):
        if a.std() > 1e-6 and b.std() > 1e-6:
            expected[name] = np.corrcoef(a, b)[0, 1]
    assert metrics.keys() == expected.keys()
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


@given(st.integers(0, 10_000), st.integers(1, 6))
def test_rolling_correlation_covers_all_samples_of_the_steps(seed, steps):
    parts = [draw_samples(seed + step) for step in range(steps)]
    rows = []
    for part in parts:
        metrics = rollout_metrics(make_batches(part, list(range(16)), 16))
        means = {name: np.mean([sample[name] for sample in part]) for name in ("reward", "correct")}
        rows.append(metrics | means)
    reward, right = (np.array([s[name] for part in parts for s in part]) for name in ("reward", "correct"))
    expected = np.corrcoef(reward, right)[0, 1] if reward.std() > 1e-6 and right.std() > 1e-6 else None
    assert rolling_correlation(rows) == (expected if expected is None else pytest.approx(expected, rel=1e-4, abs=1e-5))


def test_thinking_and_answer_are_separated_by_tokens():
    """The last final header ends the thinking, of which it is part; without one, all is thinking."""
    header = [7, 8, 9]
    tokenizer = SimpleNamespace(encode=lambda *_, **__: header, added_tokens_decoder={7: "<|channel|>"})
    samples = draw_samples(4, 4)
    for sample, response in zip(
        samples, ([1, 2, *header, 3], [1, *header, 2, *header, 3, 4, 5], [1, 2], header), strict=True
    ):
        sample["response"] = response
    metrics = rollout_metrics(make_batches(samples, [2, 0, 3, 1], 3), tokenizer)
    assert metrics["thinking_length"] == np.mean([5, 8, 2, 3])
    assert metrics["answer_length"] == np.mean([1, 3, 0])
    logged = make_batches(samples, [0, 1, 2, 3], 2)
    for batch in logged:
        batch.info["thinking_length"] = torch.ones(2)
    assert not rollout_metrics(logged, tokenizer).keys() & {"thinking_length", "answer_length"}


def test_untrained_samples_are_excluded_from_sample_means():
    """Without a reward, they lost their mask. If they counted, a failing judge would look like short responses."""
    samples = draw_samples(seed=3)
    batches = make_batches(samples, order=list(range(len(samples))), size=4)
    expected = rollout_metrics(batches[1:])
    for name in ("action_mask", "advantages"):
        getattr(batches[0], name).zero_()
    metrics = rollout_metrics(batches)
    for name in ("advantage_mean", "repetition", "response_length_p50", "sampled_tokens"):
        assert metrics[name] == pytest.approx(expected[name], abs=1e-6), name
