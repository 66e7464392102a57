from types import SimpleNamespace

import pytest
import ray
import torch

from grpo.model import routing
from grpo.train import optimizer_steps, passes
from grpo.train.worker import PolicyWorker
from tests.grpo.routed_model import TOKENS, draw_choices, make_small_model


def make_arguments(**changes) -> SimpleNamespace:
    values = {"rollout_batch_size": 8, "n_samples_per_prompt": 8, "max_epochs": 1, "train_batch_size": 64}
    others = {"init_kl_coef": 0, "use_kl_loss": False, "kl_estimator": "k1", "colocate_all_models": False}
    return SimpleNamespace(**values | others | {"old_log_probs": "trainer"} | changes)


@pytest.mark.parametrize(
    ("changes", "is_on_policy", "is_made", "is_in_update", "share"),
    [
        ({}, True, False, False, 0),
        ({"init_kl_coef": 0.1}, True, False, False, 0),
        ({"train_batch_size": 16}, False, True, True, 0.75),  # the first of four optimizer steps needs none
        ({"train_batch_size": 16, "old_log_probs": "engine"}, False, False, False, 0),
        ({"max_epochs": 2}, False, True, False, 1),
        ({"train_batch_size": 16, "init_kl_coef": 0.1}, False, True, False, 1),
        ({"train_batch_size": 16, "init_kl_coef": 0.1, "use_kl_loss": True}, False, True, True, 0.75),
    ],
)
def test_old_log_probs_are_computed_when_the_ratio_needs_them(changes, is_on_policy, is_made, is_in_update, share):
    args = make_arguments(**changes)
    assert optimizer_steps.is_on_policy(args) is is_on_policy
    assert optimizer_steps.makes_old_log_probs(args) is is_made
    assert optimizer_steps.is_in_update(args) is is_in_update
    assert optimizer_steps.share_of_old_pass(args) == share


def test_the_ratio_uses_the_engines_log_probs_or_its_own_or_those_from_before_the_update():
    current = torch.randn(2, 5, requires_grad=True)
    old, engine = torch.randn(2, 2, 5)
    batch = SimpleNamespace(action_log_probs=old, rollout_log_probs=engine)
    for train_batch_size in (64, 8):
        args = make_arguments(old_log_probs="engine", train_batch_size=train_batch_size)
        assert passes.choose_old_log_probs(args, batch, current) is engine
    own = passes.choose_old_log_probs(make_arguments(), batch, current)
    assert torch.equal(own, current) and not own.requires_grad, "a ratio of 1 keeps the gradient of the log-probs"
    assert passes.choose_old_log_probs(make_arguments(train_batch_size=8), batch, current) is old


@pytest.mark.parametrize(
    ("sampled", "kept"),
    [(None, 0), ([[0, 0, 1, 1]], 3), ([[0, 0, 0, 1], [0, 1, 0, 0]], 4), ([[1, 0, 0, 0]], 5), ([[0, 0, 0, 0]], 2)],
)
def test_logits_are_kept_from_the_token_before_the_first_sampled_one(sampled, kept):
    mask = None if sampled is None else torch.tensor(sampled, dtype=torch.bool)
    assert passes.count_logits_to_keep(mask) == kept


class Rank(torch.nn.Module):
    """An actor with a real model; its log-probs are those of every token."""

    def __init__(self):
        super().__init__()
        self.model, self.modes = make_small_model(), []

    def forward(self, sequences, *_, **__):
        self.modes.append(self.training)
        logits = self.model(sequences).logits[:, :-1].log_softmax(-1)
        return logits.gather(-1, sequences[:, 1:, None])[..., 0]


def make_micro_batch(routings):
    mask = torch.ones_like(TOKENS)
    return SimpleNamespace(sequences=TOKENS, action_mask=mask[:, 1:], attention_mask=mask, routing=routings)


def test_old_log_probs_of_later_optimizer_steps_replay_the_routing():
    rank = object.__new__(PolicyWorker)
    rank.actor = actor = Rank().train()
    first, *later = make_micro_batch(None), make_micro_batch(None), make_micro_batch(draw_choices())
    first.action_log_probs = torch.zeros(1)
    passes.set_old_log_probs(rank.forward, [[first], later])
    assert first.action_log_probs is None and set(actor.modes) == {False}, "they would have dropout"
    plain, replayed = (batch.action_log_probs for batch in later)
    assert torch.equal(plain, actor(TOKENS)) and not plain.requires_grad
    assert (plain - replayed).abs().max() > 1e-4
    with routing.replay_choices(actor, draw_choices(), TOKENS.shape[1], "cpu"):
        assert torch.equal(replayed, actor(TOKENS))


def test_a_micro_batch_replays_its_own_routing_until_the_next_one():
    """Forward and backward passes happen between the two."""
    actor = Rank()
    plain = actor(TOKENS)
    given = [make_micro_batch(draw_choices(1)), make_micro_batch(None), make_micro_batch(draw_choices(2))]
    made = [actor(batch.sequences) for batch in passes.replay_each(actor, given)]
    assert torch.equal(made[1], plain) and torch.equal(actor(TOKENS), plain)
    for values, seed in ((made[0], 1), (made[2], 2)):
        with routing.replay_choices(actor, draw_choices(seed), TOKENS.shape[1], "cpu"):
            assert torch.equal(values, actor(TOKENS))


class Ranks:
    """Ranks whose passes give log-probs; notes their calls."""

    def __init__(self, **log_probs: torch.Tensor) -> None:
        self.log_probs, self.calls, self.routings = log_probs, [], []

    def async_run_method_batch(self, method, sequences, routing=None, **_):
        self.calls.append(method)
        self.routings.append(routing)
        return [[self.log_probs[method]] for _ in sequences]  # a rank for each micro-batch

    def async_run_method(self, method):
        self.calls.append(method)


def score_batches(monkeypatch, routings=None, engine=None, **changes):
    """Ranks after the passes of two equal micro-batches, the second of these, and the log-probs of the passes."""
    monkeypatch.setattr(ray, "get", lambda value: value)
    trainer, base = torch.randn(2, 2, TOKENS.shape[1] - 1)
    ranks = Ranks(forward=trainer, reference_forward=base)
    batches = [make_micro_batch(one) for one in routings or (None, None)]
    for batch in batches:
        batch.rollout_log_probs, batch.info, batch.prompts = engine, {}, ["p"] * len(TOKENS)
        batch.action_mask = batch.action_mask.clone()
        batch.action_mask[:, :3] = 0
    passes.add_log_probs(batches, make_arguments(**changes), ranks)
    return ranks, batches[1], trainer, base


def test_actor_and_reference_get_the_routings_of_their_micro_batches(monkeypatch):
    routings = [draw_choices(1), draw_choices(2)]
    ranks, *_ = score_batches(monkeypatch, routings, init_kl_coef=0.1)
    assert ranks.calls == ["forward", "reference_forward"] and ranks.routings == [routings] * 2
    ranks, *_ = score_batches(monkeypatch, init_kl_coef=0.1, colocate_all_models=True)
    assert ranks.calls == ["forward", "empty_cache", "reference_forward", "empty_cache"]
    assert ranks.routings == [None] * 2


@pytest.mark.parametrize(
    ("train_batch_size", "old", "made"), [(64, "trainer", 0), (32, "engine", 0), (32, "trainer", 1)]
)
@pytest.mark.parametrize(("in_loss", "is_known"), [(False, True), (True, True), (False, False)])
def test_kl_costs_one_extra_pass(monkeypatch, in_loss, is_known, train_batch_size, old, made):
    """The reference's pass, and the trainer's if the reward uses it or the engine's log-probs are missing."""
    made = int((made and not in_loss) or not is_known)
    engine = torch.randn(2, TOKENS.shape[1] - 1) if is_known else None
    changes = {"init_kl_coef": 0.1, "use_kl_loss": in_loss, "old_log_probs": old, "train_batch_size": train_batch_size}
    ranks, batch, trainer, base = score_batches(monkeypatch, engine=engine, **changes)
    assert ranks.calls == ["forward"] * made + ["reference_forward"]
    kl = torch.zeros_like(base) if in_loss else (trainer if made else engine) - base
    assert torch.equal(batch.kl, kl)
    assert batch.base_action_log_probs is (base if in_loss else None)
    for name in ("kl", "logprobs_diff"):  # k1 is the difference
        torch.testing.assert_close(batch.info[name], kl[:, 3:].mean(-1))
