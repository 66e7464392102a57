"""The loss of any split of a batch equals that of the whole batch, computed by hand in float64."""

import random
import threading
from types import SimpleNamespace

import pytest
import torch

from grpo.train.loss import PolicyLoss
from tests.upstream import make_stock_loss

AGGREGATIONS = ["sequence_mean", "token_mean", "constant"]
MAX_LENGTH = 40
LENGTHS = [1, 7, 12, 3, 0, 9, 30, 2]  # one sample has no sampled token


def make_arguments(**changes) -> SimpleNamespace:
    values = {
        "loss_aggregation": "token_mean", "generate_max_len": MAX_LENGTH, "eps_clip_low_high": (0.2, 0.3),
        "dual_clip": None, "policy_loss_type": "ppo", "enable_vllm_is_correction": False, "advantage_clip": None,
        "vllm_is_correction_type": "tis", "vllm_is_truncated_threshold": [0.5, 2.0], "vllm_is_max_kl": None,
        "cispo_max_ratio": 1.2, "sapo_temperatures": [1.0, 1.05],
    }  # fmt: skip
    return SimpleNamespace(**values | changes)


def make_whole_loss(args: SimpleNamespace, mask: torch.Tensor) -> PolicyLoss:
    """A loss for which this mask is the whole batch, a rollout a row, in one micro-batch on one rank."""
    loss = PolicyLoss(args)
    loss.rollouts = torch.arange(len(mask))
    loss.scale = 1 / loss.compute_normalizer([mask], [loss.rollouts], lambda counts: counts)
    return loss


def make_batch(seed: int = 0, rollouts: list[list[int]] | None = None) -> list[dict[str, torch.Tensor]]:
    """Samples of fp64 values ``[L]``, each with a prompt's end and an environment's answer that no loss may read.

    Args:
        rollouts: the lengths of the samples of each; without them every sample is a rollout.
    """
    generator = torch.Generator().manual_seed(seed)
    samples = []
    rollouts = [[length] for length in LENGTHS] if rollouts is None else rollouts
    advantages = torch.randn(len(rollouts), generator=generator, dtype=torch.float64)
    for number, length in [(number, length) for number, lengths in enumerate(rollouts) for length in lengths]:
        mask = torch.cat([torch.zeros(2), torch.ones(length), torch.zeros(3)]).bool()
        values = torch.randn(3, len(mask), generator=generator, dtype=torch.float64) * 0.3
        advantage = advantages[number].expand(len(mask))
        current, old, engine = torch.where(mask, values - 1, 1e6 * values)
        samples.append({"log_probs": current, "old": old, "engine": engine, "advantages": advantage, "mask": mask,
                        "rollout": torch.tensor(number)})  # fmt: skip
    return samples


def pad_samples(samples: list[dict[str, torch.Tensor]]) -> SimpleNamespace:
    stacked = {
        name: torch.nn.utils.rnn.pad_sequence([sample[name] for sample in samples], batch_first=True)
        for name in samples[0]
        if name != "rollout"
    }
    index = [int(sample["rollout"]) for sample in samples]
    return SimpleNamespace(action_mask=stacked.pop("mask"), index=index, **stacked)


def compute_reference(samples: list[dict[str, torch.Tensor]], args: SimpleNamespace) -> torch.Tensor:
    """The objective by hand, rollout by rollout and token by token, negated."""
    rollouts: dict[int, list[dict[str, torch.Tensor]]] = {}
    for sample in samples:
        of_tokens = {name: value[sample["mask"]] for name, value in sample.items() if name not in ("mask", "rollout")}
        rollouts.setdefault(int(sample["rollout"]), []).append(of_tokens)
    joined = [{name: torch.cat([part[name] for part in parts]) for name in parts[0]} for parts in rollouts.values()]
    lengths = [len(one["old"]) for one in joined]
    count = sum(length > 0 for length in lengths)
    total = torch.zeros((), dtype=torch.float64)
    for one, length in zip(joined, lengths, strict=True):
        weight = {"sequence_mean": 1 / (max(length, 1) * count), "token_mean": 1 / sum(lengths)}.get(
            args.loss_aggregation, 1 / (count * MAX_LENGTH)
        )
        mismatch = (one["old"] - one["engine"]).mean().exp()
        if args.enable_vllm_is_correction and not 0.5 <= mismatch <= 2.0:  # mis; so is a mean of nothing
            weight = 0.0
        of_rollout = (one["log_probs"] - one["old"]).mean().exp()
        for token in range(length):
            ratio = (one["log_probs"][token] - one["old"][token]).exp()
            ratio = of_rollout if args.policy_loss_type == "gspo" else ratio
            advantage = one["advantages"][token]
            gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.3) * advantage)
            if args.policy_loss_type == "cispo":
                gain = ratio.detach().clamp(max=1.2) * advantage * one["log_probs"][token]
            elif args.policy_loss_type == "sapo":
                temperature = 1.0 if advantage > 0 else 1.05
                gain = (temperature * (ratio - 1)).sigmoid() * 4 / temperature * advantage
            if args.enable_vllm_is_correction:
                gain = gain * (one["old"][token] - one["engine"][token]).exp().clamp(max=2.0)
                p, q = (one[name][token].exp().clamp(max=1 - 1e-6) for name in ("engine", "old"))
                divergence = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
                gain = gain * (divergence <= (args.vllm_is_max_kl or 99))
            total = total + weight * gain
    return -total


class Group:
    """Runs the same function on several ranks, threads here, that add up tensors as a group does."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier, self.parts = size, threading.Barrier(size, timeout=400), {}

    def sum(self, rank: int, values: torch.Tensor) -> torch.Tensor:
        assert values.dtype == torch.float64
        self.parts[rank] = values
        self.barrier.wait()
        total = sum(self.parts.values())
        self.barrier.wait()
        return total

    def run(self, function) -> list:
        results: dict[int, object] = {}
        threads = [threading.Thread(target=lambda r=r: results.update({r: function(r)})) for r in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [results[rank] for rank in range(self.size)]


def compute_split_loss(args, plan: list[list[list[int]]], samples) -> torch.Tensor:
    """The trainer's loss of a batch: the mean over each rank's micro-batches, averaged over the ranks.

    Args:
        plan: for each rank the samples of its micro-batches.
    """
    group = Group(len(plan))

    def train(rank: int) -> torch.Tensor:
        micro_batches = plan[rank]
        ranks = SimpleNamespace(
            world_size=len(plan), micro_batches=len(micro_batches), sum=lambda values: group.sum(rank, values)
        )
        loss = PolicyLoss(args)
        loader = [pad_samples([samples[number] for number in micro_batch]) for micro_batch in micro_batches]
        total = torch.zeros((), dtype=torch.float64)
        for part in loss.iterate_batches(loader, ranks):
            total = total + loss(part.log_probs, part.old, part.advantages, part.action_mask, part.engine)
        return total / len(loader)

    return sum(group.run(train)) / len(plan)


def assert_split_is_whole(args, plan, samples):
    """Loss and gradient of a batch that is split are those by hand."""
    leaves = [sample["log_probs"].requires_grad_() for sample in samples]
    expected = compute_reference(samples, args)
    gradients = torch.autograd.grad(expected, leaves, allow_unused=True)
    loss = compute_split_loss(args, plan, samples)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    for mine, theirs in zip(torch.autograd.grad(loss, leaves), gradients, strict=True):
        torch.testing.assert_close(mine, torch.zeros_like(mine) if theirs is None else theirs, rtol=1e-12, atol=1e-15)


FORMS = {
    **{aggregation: {"loss_aggregation": aggregation} for aggregation in AGGREGATIONS},
    "gspo": {"loss_aggregation": "sequence_mean", "policy_loss_type": "gspo"},
    **{f"{kind}, {form}": {"loss_aggregation": form, "policy_loss_type": kind}
       for kind in ("cispo", "sapo") for form in AGGREGATIONS},
    "mis": {"enable_vllm_is_correction": True, "vllm_is_correction_type": "mis"},
    "mis, limit": {
        "enable_vllm_is_correction": True, "vllm_is_correction_type": "mis", "vllm_is_max_kl": 0.05
    },
    "cispo, mis": {
        "policy_loss_type": "cispo", "enable_vllm_is_correction": True, "vllm_is_correction_type": "mis"
    },
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(8))
def test_a_rollout_counts_once_in_any_split_of_the_batch(form, seed):
    draw = random.Random(seed)
    # Of one sample or several, some without a sampled token, and at least one rollout without any.
    rollouts = [[draw.choice([0, 1, 4, 9, 23]) for _ in range(draw.randint(1, 4))] for _ in range(8)]
    rollouts[draw.randrange(8)] = [0] * draw.randint(1, 3)
    samples = make_batch(seed, rollouts)
    ranks, accumulated = draw.choice([(1, 1), (1, 4), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2)])
    order = draw.sample(range(8), 8)
    cuts = [order[start : start + 8 // (ranks * accumulated)] for start in range(0, 8, 8 // (ranks * accumulated))]
    # The samples of a rollout may be anywhere in its micro-batch.
    rows = [[row for row, sample in enumerate(samples) if int(sample["rollout"]) in cut] for cut in cuts]
    plan = [[draw.sample(part, len(part)) for part in rows[rank::ranks]] for rank in range(ranks)]
    assert_split_is_whole(make_arguments(**FORMS[form]), plan, samples)


TWO = SimpleNamespace(world_size=1, micro_batches=2, sum=lambda values: values)


def test_each_optimizer_step_has_its_own_normalizer():
    samples = make_batch()
    loss = PolicyLoss(make_arguments())
    loader = [pad_samples([samples[2 * number], samples[2 * number + 1]]) for number in range(4)]
    losses = []
    for part in loss.iterate_batches(loader, TWO):
        losses.append(loss(part.log_probs, part.old, part.advantages, part.action_mask))
    for step in (0, 1):
        expected = compute_reference(samples[4 * step : 4 * step + 4], make_arguments())
        torch.testing.assert_close((losses[2 * step] + losses[2 * step + 1]) / 2, expected)


def test_a_batch_without_sampled_tokens_has_no_loss():
    mask, values = torch.zeros(2, 3), torch.randn(2, 3, requires_grad=True)
    loss = make_whole_loss(make_arguments(), mask)(values, values.detach(), torch.ones(2, 3), mask)
    loss.backward()
    assert loss == 0 and not values.grad.any()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dual_clip": 1.5},
        {"policy_loss_type": "gspo", "loss_aggregation": "sequence_mean"},
        {"enable_vllm_is_correction": True, "vllm_is_correction_type": "icepop"},
        {"enable_vllm_is_correction": True, "vllm_is_truncated_threshold": [0.0, 2.0]},
        {
            "enable_vllm_is_correction": True,
            "vllm_is_correction_type": "mis",
            "vllm_is_truncated_threshold": [0.9, 99],
        },
    ],
    ids=lambda changes: " ".join(map(str, changes.values())) or "plain",
)
def test_loss_equals_openrlhfs_in_its_correct_cases(changes):
    part, args = pad_samples([sample for sample in make_batch() if sample["mask"].any()]), make_arguments(**changes)
    # a spread at which some tokens are clipped, by either clip, truncated and dropped
    mask = part.action_mask
    current, old, engine = (values * mask for values in (2 * part.log_probs, 2 * part.old, 2 * part.engine))
    loss = make_whole_loss(args, mask)
    value = loss(current, old, part.advantages, mask, engine)
    expected, clip_ratio, _, engine_kl, *_ = make_stock_loss(args)(current, old, part.advantages, mask, engine)
    torch.testing.assert_close(value, expected)

    def compute_mean(name: str) -> torch.Tensor:
        return loss.per_token[name][mask].mean()

    torch.testing.assert_close(
        compute_mean("clip_ratio_low") + compute_mean("clip_ratio_high"), clip_ratio, check_dtype=False
    )
    if args.enable_vllm_is_correction:
        torch.testing.assert_close(compute_mean("vllm_kl"), engine_kl, check_dtype=False)
    else:
        assert "vllm_kl" not in loss.per_token


def test_the_correction_needs_the_engines_log_probs():
    part = pad_samples(make_batch())
    corrected = make_whole_loss(make_arguments(enable_vllm_is_correction=True), part.action_mask)
    with pytest.raises(ValueError, match="--enable_vllm_is_correction"):
        corrected(part.log_probs, part.old, part.advantages, part.action_mask)


@pytest.mark.parametrize("kind", ["ppo", "gspo", "cispo", "sapo"])
def test_a_ratio_that_is_far_out_stays_finite(kind):
    current = torch.tensor([[200.0, -200.0, 200.0]], requires_grad=True)
    mask, advantages = torch.ones(1, 3), torch.tensor([[0.0, -1.0, -1.0]])
    corrected = {"enable_vllm_is_correction": True, "vllm_is_correction_type": "icepop"}
    args = make_arguments(policy_loss_type=kind, **corrected)
    engine = torch.tensor([[-200.0, 0.0, 0.0]])
    loss = make_whole_loss(args, mask)(current, torch.zeros(1, 3), advantages, mask, engine)
    loss.backward()
    assert loss.isfinite() and current.grad.isfinite().all()


def test_advantages_are_clipped():
    part = pad_samples(make_batch())
    loss = make_whole_loss(make_arguments(advantage_clip=0.4), part.action_mask)
    clipped_loss = loss(part.log_probs, part.old, part.advantages, part.action_mask)
    clipped = [sample | {"advantages": sample["advantages"].clamp(-0.4, 0.4)} for sample in make_batch()]
    torch.testing.assert_close(clipped_loss, compute_reference(clipped, make_arguments()))
    over = sum(int(s["mask"].sum()) for s in make_batch() if s["advantages"].abs().max() > 0.4)
    assert loss.per_token["advantage_clipped"][part.action_mask.bool()].sum() == over
