"""The metrics of a step against float64 from its saved tensors, for any split into batches and ranks."""

import random
from copy import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from grpo.metrics import step_metrics, token_recorder
from grpo.metrics.metric_schema import BY_NAME
from grpo.metrics.step_metrics import policy_metrics
from grpo.model.routing import Replay
from grpo.model.vocabulary import Allocated
from grpo.rollout.rows import Batch, join
from grpo.train import micro_batches, passes
from grpo.train.log_probs import TokenScores, token_scores
from grpo.train.loss import PolicyLoss
from grpo.train.micro_batches import number_rollouts

VOCABULARY, ALLOCATED, GROUP, COUNT = 23, 20, 4, 12
CLIP = (0.2, 0.3)


def make_arguments(on_policy: bool) -> SimpleNamespace:
    return SimpleNamespace(
        rollout_batch_size=COUNT // GROUP, n_samples_per_prompt=GROUP, max_epochs=1, init_kl_coef=0,
        train_batch_size=COUNT if on_policy else COUNT // 2, eps_clip_low_high=CLIP, use_kl_loss=False,
        old_log_probs="trainer", loss_aggregation="token_mean", generate_max_len=12, policy_loss_type="ppo",
        dual_clip=None, enable_vllm_is_correction=False, advantage_clip=None, kl_estimator="k2",
    )  # fmt: skip


def draw_samples(seed: int) -> list[dict]:
    """Samples with the logits that the policy has at each sampled token."""
    draw = np.random.default_rng(seed)
    samples = []
    for _ in range(COUNT):
        prompt, size = int(draw.integers(1, 6)), int(draw.integers(1, 12))
        logits = draw.normal(size=(size, VOCABULARY)).astype(np.float32) * 3
        tokens = draw.integers(0, ALLOCATED, prompt + size)
        log_probs = torch.tensor(logits).log_softmax(-1).numpy()[np.arange(size), tokens[prompt:]]
        samples.append(
            {
                "prompt": prompt, "tokens": tokens, "logits": logits, "log_probs": log_probs,
                "old": log_probs + draw.normal(size=size).astype(np.float32) * 0.3,
                "engine": log_probs + draw.normal(size=size) * 0.01 - 12 * (draw.random(size) < 0.05),
                "advantage": np.float32(draw.normal()), "correct": float(draw.random() < 0.5),
            }
        )  # fmt: skip
    return samples


def make_batch(index: int, sample: dict) -> Batch:
    """One sample as the trainer has it after the advantages are known."""
    prompt, size = sample["prompt"], len(sample["log_probs"])

    def place_at_actions(values: np.ndarray) -> torch.Tensor:
        return torch.cat([torch.zeros(prompt - 1), torch.tensor(values).float()])[None]

    mask, correct = place_at_actions(np.ones(size)), torch.tensor([sample["correct"]])
    made = Batch(
        torch.tensor(sample["tokens"])[None], torch.ones(1, prompt + size), mask, place_at_actions(sample["engine"]),
        ["p"], ["l"], correct, correct, {"correct": correct, "response_length": torch.tensor([size])}, [index],
        action_log_probs=place_at_actions(sample["old"]),
    )  # fmt: skip
    made.advantages = mask * sample["advantage"]
    return made


def train_rank(engine: SimpleNamespace, args, batches: list[Batch], samples: list[dict], size: int) -> dict:
    """The records of one rank, whose share is trained in micro-batches of `size`."""
    metrics = token_recorder.ActorMetrics(args, engine)
    rows = [row for batch in batches for row in micro_batches.split_by_rollout(batch)]
    for start in range(0, len(rows), size):
        batch = micro_batches.join_rollouts(rows[start : start + size])
        length = batch.sequences.shape[1]
        logits, log_probs = torch.zeros(len(batch.sequences), length, VOCABULARY), torch.zeros(batch.action_mask.shape)
        for row, index in enumerate(batch.index):
            sample = samples[index]
            begin, end = sample["prompt"] - 1, len(sample["tokens"]) - 1
            logits[row, begin:end] = torch.tensor(sample["logits"])
            log_probs[row, begin:end] = torch.tensor(sample["log_probs"])
        # With the identity as lm_head, hidden states are logits.
        targets = torch.zeros(logits.shape[:2], dtype=torch.long).flatten()
        scores = token_scores(logits.flatten(0, 1), torch.eye(VOCABULARY), targets, Allocated(ALLOCATED))
        output = SimpleNamespace(scores=TokenScores(*(values.view(logits.shape[:2]) for values in scores)))
        loss = PolicyLoss(args)
        loss.scale, loss.rollouts = 1.0, number_rollouts(batch)
        old = passes.choose_old_log_probs(args, batch, log_probs)
        value = loss(log_probs, old, batch.advantages, batch.action_mask, batch.rollout_log_probs)
        loss.compute_kl_loss(log_probs, old, 2 * log_probs, batch.action_mask)
        # of two layers and every token, the first token of each row would have gone to other experts in one
        batch.replay = Replay(int(batch.attention_mask.sum()), [torch.tensor(len(batch.sequences)), torch.tensor(0)])
        metrics.note(batch, log_probs, old, output, value, loss.per_token)
        metrics.note_update()
    engine.global_steps += 1
    metrics.note_update()
    return metrics.pop()


def run_step(samples: list[dict], seed: int, size: int, ranks: int, on_policy: bool) -> tuple[dict, list]:
    """Return the status and the samples of a step that is cut and spread at random."""
    single = [make_batch(index, sample) for index, sample in enumerate(samples)]
    order = list(range(COUNT))
    random.Random(seed).shuffle(order)
    cuts = [order[start : start + 3] for start in range(0, COUNT, 3)]
    batches = [join([single[index] for index in cut], 0) for cut in cuts]
    results = []
    for rank in range(ranks):
        engine = SimpleNamespace(
            global_steps=0,
            get_global_grad_norm=lambda: 2.0,
            module=nn.Linear(1, 1),
            named_parameters=lambda: [],
            optimizer=SimpleNamespace(param_groups=[{"lr": 0.0}]),
        )
        share = [copy(batch) for batch in batches[rank::ranks]]
        results.append(train_rank(engine, make_arguments(on_policy), share, samples, size))
    status = step_metrics.merge(results)
    tokenizer = SimpleNamespace(decode=str, encode=lambda *_, **__: [0], added_tokens_decoder={})
    step_metrics.add_step_metrics(status, batches, single, tokenizer)
    return status, single


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 3), st.booleans())
def test_step_metrics_match_float64_for_any_batching_and_ranks(seed, size, ranks, on_policy):
    samples = draw_samples(seed)
    status, described = run_step(samples, seed, size, ranks, on_policy)

    log_probs = np.concatenate([sample["log_probs"] for sample in samples]).astype(float)
    old = log_probs if on_policy else np.concatenate([sample["old"] for sample in samples]).astype(float)
    advantage = np.concatenate([np.repeat(sample["advantage"], len(sample["log_probs"])) for sample in samples])
    logits = np.concatenate([sample["logits"] for sample in samples]).astype(float)
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    allocated = probabilities[:, :ALLOCATED] / probabilities[:, :ALLOCATED].sum(-1, keepdims=True)
    entropy = -(allocated * np.log(allocated)).sum(-1)
    engine = np.concatenate([sample["engine"] for sample in samples]).astype(float)
    ratio, difference = np.exp(log_probs - old), np.abs(old - engine)
    third = np.concatenate([3 * np.arange(len(s["log_probs"])) // len(s["log_probs"]) for s in samples])
    low, high = (ratio < 1 - CLIP[0]) & (advantage < 0), (ratio > 1 + CLIP[1]) & (advantage > 0)
    expected = {
        "ppo_kl": (old - log_probs).mean(),
        "clip_ratio_low": low.mean(), "clip_ratio_high": high.mean(), "ppo_clip_ratio": (low | high).mean(),
        "entropy": entropy.mean(),
        "unallocated_mass": probabilities[:, ALLOCATED:].sum(-1).mean(),
        "logprob_diff_mean": difference.mean(), "logprob_diff_max": difference.max(),
        "logprob_diff_first": difference[third == 0].mean(), "logprob_diff_last": difference[third == 2].mean(),
        "improbable_tokens": (engine < np.log(1e-4)).mean(),
        "correct": np.mean([sample["correct"] for sample in samples]),
        "sampled_tokens": len(log_probs),
        "kl": np.minimum(log_probs**2 / 2, 10).mean(), "logprobs_diff": -log_probs.mean(),
        "grad_norm": 2.0, "grad_norm_max": 2.0,
        "routing_differs": COUNT / (2 * sum(len(sample["tokens"]) for sample in samples)),
    }  # fmt: skip
    for name, value in expected.items():
        assert status[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    assert "micro_batches" not in status
    numbers = {name for name, value in status.items() if isinstance(value, float)}
    assert numbers <= BY_NAME.keys()
    for sample, known in zip(described, samples, strict=True):
        assert sample.details["advantage"] == pytest.approx(known["advantage"], rel=1e-5)
        before = known["log_probs"] if on_policy else known["old"]
        assert sample.details["surprisal"] == pytest.approx(-before.mean(), rel=1e-4, abs=1e-5)
        tokens = sample.details["least_likely_tokens"]
        assert len(tokens) == min(3, len(before))
        first = min(np.minimum(before, known["engine"]))
        assert min(tokens[0]["trainer"], tokens[0]["engine"]) == pytest.approx(first, rel=1e-4)
        assert sample.details["logprob_diff_max"] == pytest.approx(np.abs(before - known["engine"]).max(), abs=1e-4)


def test_micro_batch_spike_is_shown_with_its_samples():
    samples = draw_samples(0)
    single = [make_batch(index, sample) for index, sample in enumerate(samples)]
    for one in single:
        one.rollout_log_probs = None
    notes = [
        token_recorder.MicroBatch([index], [1], loss, *[torch.tensor([advantage])] * 5)
        for index, (loss, advantage) in enumerate([(0.0, 0.0)] * 7 + [(-30.0, 0.5)] + [(1.0, 0.5)] * 4)
    ]  # most groups teach nothing, which is common
    status = {"micro_batches": notes, "grad_norms": []}
    step_metrics.add_step_metrics(status, single, single, None)
    assert status["policy_loss_max"] == 30 and status["policy_loss_spike"] == 30
    assert [index for index, sample in enumerate(single) if abs(sample.details["micro_batch_loss"]) == 30] == [7]


def test_failing_metric_is_counted_and_others_stay(caplog):
    single = [make_batch(index, sample) for index, sample in enumerate(draw_samples(2))]
    for one in single:
        one.info["response_length"] = "not a number"
    status: dict = {"grad_norms": [1.0]}
    with caplog.at_level("ERROR", logger="openrlhf.grpo.step_metrics"):
        step_metrics.add_step_metrics(status, single, single, None)
    assert status["metric_errors"] >= 1 and "advantage_mean" in status and status["grad_norm"] == 1
    assert "missing" in caplog.text


def test_clip_ratio_of_gspo_counts_samples():
    """GSPO clips one ratio per sample, not one per token."""
    args = make_arguments(False)
    args.policy_loss_type, args.eps_clip_low_high = "gspo", (0.1, 0.1)
    loss = PolicyLoss(args)
    loss.scale, loss.rollouts = 1.0, torch.arange(2)
    mask = torch.ones(2, 4)
    log_probs = torch.tensor([[0.5, -0.5, 0.5, -0.5], [0.3, 0.3, 0.3, 0.3]])  # the first has a ratio of 1
    loss(log_probs, torch.zeros(2, 4), torch.ones(2, 4), mask)
    note = token_recorder.MicroBatch([0, 1], [4, 4], 0.0, *[torch.ones(8)] * 5, of_loss={
        name: values.flatten() for name, values in loss.per_token.items()
    })  # fmt: skip
    computed = policy_metrics([note])
    assert (computed["clip_ratio_low"], computed["clip_ratio_high"], computed["ppo_clip_ratio"]) == (0, 0.5, 0.5)


def finish_step(samples: list[dict], **info: list[float]) -> dict[str, float]:
    """The status of a step with these samples, which nothing has trained."""
    batches = [make_batch(index, sample) for index, sample in enumerate(samples)]
    for index, batch in enumerate(batches):
        batch.info |= {name: torch.tensor([values[index]]) for name, values in info.items()}
    status = {"reward": 0.0, "return": 0.0, "metric_errors": 0.0}
    step_metrics.add_step_metrics(status, batches, batches, None)
    return status


def test_a_divergence_from_the_reference_is_a_mean_over_tokens():
    samples = draw_samples(0)
    values = list(np.random.default_rng(1).random(COUNT))
    lengths = [len(sample["log_probs"]) for sample in samples]
    computed = finish_step(samples, kl=values, logprobs_diff=values)
    assert computed["kl"] == pytest.approx(np.average(values, weights=lengths)) == computed["logprobs_diff"]
    assert computed["kl"] != pytest.approx(np.mean(values))


def test_masked_rollouts_are_a_number_and_not_a_share():
    marks = [float(index % 3 == 0) for index in range(COUNT)]
    assert finish_step(draw_samples(0), masked_rollouts=marks)["masked_rollouts"] == sum(marks) > 1
    assert "masked_rollouts" not in finish_step(draw_samples(0))


def test_a_step_without_any_reward_has_no_mean_reward():
    samples = draw_samples(0)
    nothing, all_of_it = [0.0] * COUNT, [1.0] * COUNT
    computed = finish_step(samples, reward=nothing, reward_missing=all_of_it)
    assert not {"reward", "return", "reward_std"} & computed.keys() and computed["reward_missing"] == 1
    assert finish_step(samples, reward=nothing, reward_missing=nothing)["reward"] == 0


def test_filled_in_rewards_are_excluded_from_the_spread():
    samples = draw_samples(0)
    real = [float(index % 2) for index in range(GROUP)] + [0.5] * (COUNT - GROUP)
    missing = [0.0] * GROUP + [1.0] * (COUNT - GROUP)
    for index, sample in enumerate(samples):
        sample["correct"] = real[index]  # the reward, see `make_batch`
    computed = finish_step(samples, reward=real, reward_missing=missing)
    assert computed["reward_std"] == pytest.approx(0.5)
