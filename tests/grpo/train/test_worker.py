"""A rank's update: every split of a batch gives the same gradient, and its passes."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from grpo.rollout.rows import Batch
from grpo.train.loss import PolicyLoss, Ranks
from grpo.train.worker import PolicyWorker

LENGTHS, VOCABULARY = (2, 9, 4, 7), 11


def make_experiences() -> list[Batch]:
    """One sample each: a prompt of two tokens, and a response."""
    generator = torch.Generator().manual_seed(0)
    samples = []
    for number, length in enumerate(LENGTHS):
        sequences = torch.randint(VOCABULARY, (1, 2 + length), generator=generator)
        mask = torch.cat([torch.zeros(1, 1), torch.ones(1, length)], dim=1)
        random = [torch.randn(mask.shape, generator=generator) * 0.4 - 2.4 for _ in range(3)]
        old, base, engine = (values * mask for values in random)
        one = torch.ones(1)
        logs = {"total_length": one * (2 + length), "response_length": one * length, "reward": one, "return": one}
        samples.append(
            Batch(
                sequences, torch.ones_like(sequences), mask, engine, ["p"], ["l"], one, one, logs, [number],
                action_log_probs=old, base_action_log_probs=base,
            )
        )  # fmt: skip
        samples[-1].advantages = torch.randn(1, 1, generator=generator).expand(mask.shape) * mask
    return samples


class Policy(torch.nn.Module):
    """Predicts the next token from the last one only, and acts as its own DeepSpeed engine."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: list[bool] = []
        self.table = torch.nn.Parameter(torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(1)))

    @property
    def model(self) -> "Policy":
        return self

    def backward(self, loss) -> None:
        (loss / self.accumulated).backward()  # as DeepSpeed does

    def step(self) -> None:
        self.optimizer_step()

    def forward(self, sequences, action_mask, attention_mask=None, return_output=False):
        self.passes.append(torch.is_grad_enabled())
        logits = self.table[sequences[:, :-1]]
        log_probs = logits.log_softmax(-1).gather(-1, sequences[:, 1:, None])[..., 0]
        entropy = torch.distributions.Categorical(logits=self.table[sequences]).entropy()
        log_probs = log_probs * action_mask
        output = SimpleNamespace(scores=SimpleNamespace(entropy=entropy))
        return (log_probs, output) if return_output else log_probs


def make_arguments(**changes) -> SimpleNamespace:
    values = {
        "loss_aggregation": "token_mean", "generate_max_len": 20, "eps_clip_low_high": (0.2, 0.2), "dual_clip": None,
        "policy_loss_type": "ppo", "enable_vllm_is_correction": False, "vllm_is_correction_type": "tis",
        "vllm_is_truncated_threshold": [0.5, 2.0], "advantage_clip": None, "vllm_is_max_kl": None,
        "old_log_probs": "trainer",
        "rollout_batch_size": 2, "n_samples_per_prompt": 2, "max_epochs": 2, "train_batch_size": 2,
        "use_kl_loss": True, "init_kl_coef": 0.1, "kl_estimator": "k3",
        "entropy_loss_coef": 0.05, "aux_loss_coef": 0.0, "cispo_max_ratio": 1.2, "sapo_temperatures": [1.0, 1.05],
    }  # fmt: skip
    return SimpleNamespace(**values | changes)


def train(args: SimpleNamespace, micro: int) -> tuple[torch.Tensor, dict[str, float]]:
    """Update on one optimizer batch in micro-batches; return the gradient, and what the rank reports."""
    policy, noted = Policy(), []
    rank = make_rank(args, policy, micro, len(LENGTHS) // micro, lambda *all: noted.append(all[-1]))
    status = rank.update()
    return policy.table.grad, status | {"noted": noted}


def make_rank(args, policy, micro, accumulated, note, optimizer_step=lambda: None) -> PolicyWorker:
    """A single rank with the rollouts of a step."""
    rank = object.__new__(PolicyWorker)
    policy.accumulated, policy.optimizer_step = accumulated, optimizer_step
    rank.args, rank.actor, rank.ranks = args, policy, Ranks(1, accumulated)
    args.micro_train_batch_size = micro
    rank.metrics = SimpleNamespace(note_update=lambda: None, pop=dict, note=note)
    rank.loss, rank.rollouts = PolicyLoss(args), []
    for experience in make_experiences():
        rank.append(experience)
    return rank


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "constant"])
@pytest.mark.parametrize("kind", ["ppo", "cispo", "sapo"])
def test_a_masked_rollout_is_in_no_term_and_in_no_denominator(single_rank, aggregation, kind):
    """The gradient is that of the other rollouts alone, with KL and entropy."""
    made, hidden = make_experiences(), (0.0, 1.0, 1.0, 0.0)
    for one, mark in zip(made, hidden, strict=True):
        one.info["masked_rollouts"] = torch.tensor([mark])
    gradients = []
    for rollouts in (made, [made[0], made[3]]):
        policy = Policy()
        args = make_arguments(loss_aggregation=aggregation, policy_loss_type=kind, max_epochs=1)
        rank = make_rank(args, policy, len(rollouts), 1, lambda *_: None)
        rank.rollouts.clear()
        for rollout in rollouts:
            rank.append(rollout)
        rank.update()
        gradients.append(policy.table.grad)
    assert gradients[0].abs().max() > 1e-4
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("micro", [4, 2, 1])
def test_all_terms_are_those_of_the_whole_batch_in_any_micro_batches(single_rank, micro):
    """By hand: the gradient of everything together, in two epochs."""
    policy, total, policy_loss = Policy(), torch.zeros(()), torch.zeros(())
    for one in make_experiences():
        log_probs, output = policy(one.sequences, one.action_mask, return_output=True)
        ratio = (log_probs - one.action_log_probs).exp()
        objective = torch.min(ratio * one.advantages, ratio.clamp(0.8, 1.2) * one.advantages)
        kl = ratio.detach().clamp(max=10) * (log_probs - one.base_action_log_probs) ** 2 / 2
        policy_loss = policy_loss - (objective * one.action_mask).sum()
        total = total + ((0.1 * kl - objective - 0.05 * output.scores.entropy[:, :-1]) * one.action_mask).sum()
    (2 * total / sum(LENGTHS)).backward()
    gradient, status = train(make_arguments(), micro)
    torch.testing.assert_close(gradient, policy.table.grad, rtol=1e-4, atol=1e-6)
    assert status["policy_loss"] == pytest.approx(float(policy_loss) / sum(LENGTHS), rel=1e-4)


def test_the_first_optimizer_step_needs_no_pass_for_old_log_probs(single_rank):
    """Two optimizer steps of two samples each: the ratio of both is to the policy before the first."""
    args, policy, before, steps = make_arguments(max_epochs=1), Policy(), Policy(), itertools.count()
    used = []

    def note(experience, current, old, *_):
        used.append((experience, old))

    def optimizer_step():
        if next(steps) % 2:
            policy.table.data += 0.1 * torch.randn_like(policy.table)

    make_rank(args, policy, 1, 2, note, optimizer_step).update()
    assert policy.passes == [False, False, True, True, True, True]  # with and without gradients
    assert not torch.equal(policy.table, before.table)
    for experience, old in used:
        expected = before(experience.sequences, experience.action_mask)
        assert torch.equal(old, expected) and old.count_nonzero() == experience.action_mask.sum()
