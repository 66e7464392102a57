"""OpenRLHF's own training loop, replay buffer and loader with our loss: every split gives the same gradient."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience_maker import Experience
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer
from openrlhf.trainer.ray import ppo_actor

from grpo.update.loss import PolicyLoss
from grpo.update.passes import old_log_probs

LENGTHS, VOCABULARY = (2, 9, 4, 7), 11


def experiences() -> list[Experience]:
    """One sample each: a prompt of two tokens, and a response."""
    generator = torch.Generator().manual_seed(0)
    samples = []
    for number, length in enumerate(LENGTHS):
        sequences = torch.randint(VOCABULARY, (1, 2 + length), generator=generator)
        mask = torch.cat([torch.zeros(1, 1), torch.ones(1, length)], dim=1)
        random = [torch.randn(mask.shape, generator=generator) * 0.4 - 2.4 for _ in range(3)]
        old, base, engine = (values * mask for values in random)
        samples.append(
            Experience(
                sequences=sequences,
                attention_mask=torch.ones_like(sequences),
                action_mask=mask,
                action_log_probs=old,
                base_action_log_probs=base,
                rollout_log_probs=engine,
                advantages=torch.randn(1, 1, generator=generator).expand(mask.shape) * mask,
                returns=mask,
                values=None,
                info={
                    "total_length": torch.tensor([2.0 + length]),
                    "response_length": torch.tensor([float(length)]),
                    "reward": torch.ones(1),
                    "return": torch.ones(1),
                    "sample": torch.tensor([number]),
                },
            )
        )
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

    def forward(self, sequences, action_mask, return_output=False, **_):
        self.passes.append(torch.is_grad_enabled())
        logits = self.table[sequences[:, :-1]]
        log_probs = logits.log_softmax(-1).gather(-1, sequences[:, 1:, None])[..., 0]
        entropy = torch.distributions.Categorical(logits=logits).entropy()
        log_probs = log_probs * action_mask
        return (log_probs, SimpleNamespace(entropy=entropy)) if return_output else log_probs


def arguments(**changes) -> SimpleNamespace:
    values = {
        "loss_aggregation": "token_mean", "generate_max_len": 20, "eps_clip_low_high": (0.2, 0.2), "dual_clip": None,
        "policy_loss_type": "ppo", "enable_vllm_is_correction": False, "vllm_is_correction_type": "tis",
        "vllm_is_truncated_threshold": [0.5, 2.0], "advantage_clip": None, "old_log_probs": "trainer",
        "rollout_batch_size": 2, "n_samples_per_prompt": 2, "max_epochs": 2, "train_batch_size": 2,
        "use_dynamic_batch": False, "use_kl_loss": True, "init_kl_coef": 0.1, "kl_estimator": "k3",
        "entropy_loss_coef": 0.05, "aux_loss_coef": 0.0, "ds_tensor_parallel_size": 1,
    }  # fmt: skip
    return SimpleNamespace(**values | changes)


def train(args: SimpleNamespace, micro: int) -> tuple[torch.Tensor, dict[str, float]]:
    """Run ``ppo_train`` over one optimizer batch in micro-batches; return the gradient, and the status."""
    policy, noted = Policy(), []
    note = lambda *all: noted.append(all[-1])  # noqa: E731
    status = trainer_of(args, policy, micro, len(LENGTHS) // micro, note).ppo_train(args.init_kl_coef)
    return policy.table.grad, status | {"noted": noted}


def trainer_of(args, policy, micro, accumulated, note, optimizer_step=lambda *_, **__: None):
    """Return OpenRLHF's trainer of one rank, with the samples in its buffer."""
    trainer = object.__new__(ppo_actor.ActorPPOTrainer)
    trainer.strategy = SimpleNamespace(
        args=args, ring_attn_group=None, world_size=1, accumulated_gradient=accumulated, is_rank_0=lambda: False,
        backward=lambda loss, *_: (loss / accumulated).backward(),  # as DeepSpeed does
        optimizer_step=optimizer_step, all_reduce=lambda values, op="mean": values,
        get_grad_norm=lambda actor: 0.0,  # read from OpenRLHF 0.9.4 on
    )  # fmt: skip
    trainer.args, trainer.actor, trainer.max_epochs, trainer.ema_model = args, policy, 1, None
    trainer.aux_loss, trainer.actor_optim, trainer.dataloader_pin_memory = False, None, False
    trainer.actor_scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
    trainer.metrics = SimpleNamespace(after_backward_and_step=lambda *_: None, pop=dict, note=note)
    trainer.actor_loss_fn = PolicyLoss(args)
    trainer.replay_buffer = NaiveReplayBuffer(micro)
    for experience in experiences():
        trainer.replay_buffer.append(experience)
    return trainer


FORMS = {
    "plain": {},
    "corrected": {"enable_vllm_is_correction": True},
    "engine": {"old_log_probs": "engine"},
    "one step a rollout": {"train_batch_size": 4, "max_epochs": 1},
    "one step a rollout, corrected": {"train_batch_size": 4, "max_epochs": 1, "enable_vllm_is_correction": True},
}


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "constant"])
@pytest.mark.parametrize("form", FORMS)
def test_the_gradient_is_the_same_for_any_micro_batch(aggregation, form):
    args = arguments(loss_aggregation=aggregation, **FORMS[form])
    (whole, status), *others = [train(args, micro) for micro in (4, 2, 1)]
    assert whole.abs().max() > 1e-4
    for gradient, other in others:
        torch.testing.assert_close(gradient, whole, rtol=1e-4, atol=1e-7)
        assert other["policy_loss"] == pytest.approx(status["policy_loss"], rel=1e-4, abs=1e-7)


def test_forms_differ():
    losses = {form: train(arguments(**changes), 2)[0] for form, changes in FORMS.items()}
    for one, other in itertools.combinations(losses, 2):
        assert not torch.allclose(losses[one], losses[other], rtol=1e-3), (one, other)


def test_kl_and_entropy_are_those_of_the_whole_batch():
    """By hand: the gradient of everything together."""
    policy, total = Policy(), torch.zeros(())
    for one in experiences():
        log_probs, output = policy(one.sequences, one.action_mask, return_output=True)
        ratio = (log_probs - one.action_log_probs).exp()
        objective = torch.min(ratio * one.advantages, ratio.clamp(0.8, 1.2) * one.advantages)
        difference = one.base_action_log_probs - log_probs
        kl = difference.exp() - 1 - difference
        total = total + ((0.1 * kl - objective - 0.05 * output.entropy) * one.action_mask).sum()
    (total / sum(LENGTHS)).backward()
    torch.testing.assert_close(train(arguments(), 1)[0], policy.table.grad, rtol=1e-4, atol=1e-6)


def test_status_includes_the_measurements_of_the_loss():
    _, status = train(arguments(enable_vllm_is_correction=True, advantage_clip=0.5), 4)
    assert {"ppo_kl", "vllm_kl"} <= status.keys()
    names = {"importance_cut", "importance_weight", "advantage_clipped", "vllm_kl", "clip_ratio_low", "clip_ratio_high"}
    assert status["noted"][0].keys() >= names
    _, plain = train(arguments(), 4)
    assert status["ppo_kl"] == pytest.approx(plain["ppo_kl"], rel=1e-3) and "vllm_kl" not in plain


def test_the_first_optimizer_step_needs_no_pass_for_old_log_probs():
    """Two optimizer steps of two samples each: the ratio of both is to the policy before the first."""
    args, policy, before, steps = arguments(max_epochs=1), Policy(), Policy(), itertools.count()
    used = []

    def note(experience, current, *_):
        used.append((experience, old_log_probs(args, experience, current)))

    def optimizer_step(*_, **__):
        if next(steps) % 2:
            policy.table.data += 0.1 * torch.randn_like(policy.table)

    trainer_of(args, policy, 1, 2, note, optimizer_step).ppo_train(0.1)
    assert policy.passes == [False, False, True, True, True, True]  # with and without gradients
    assert not torch.equal(policy.table, before.table)
    for experience, old in used:
        expected = before(experience.sequences, experience.action_mask)
        assert torch.equal(old, expected) and old.count_nonzero() == experience.action_mask.sum()
