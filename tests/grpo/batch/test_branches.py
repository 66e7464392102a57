"""Rollouts with several samples through OpenRLHF's own classes: makers, replay buffer and loss."""

import asyncio
import math
from collections import Counter
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker, SamplesGenerator
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer
from torch.utils.data import DataLoader

from grpo.batch import branches
from grpo.metrics import step_metrics
from grpo.metrics.token_recorder import MicroBatch
from grpo.metrics.update_metrics import log_probs_by_sample
from grpo.rollout.multi_turn.rollout import EnginePolicy, roll_out
from grpo.rollout.multi_turn.templates import template_for
from grpo.update.loss import PolicyLoss
from tests.grpo.rollout.multi_turn.dialects import TOKENIZERS
from tests.grpo.rollout.multi_turn.scripted import LIMITS, Library, ScriptedEngine, params

TOKENIZER = TOKENIZERS["qwen3"]
N = 2  # samples a prompt
THOUGHTFUL = ["<think>\nhm\n</think>\n\nthere<|im_end|>"] * 3 + ["42<|im_end|>"]
PLAIN = ["42<|im_end|>"]


def arguments(estimator="dr_grpo"):
    return SimpleNamespace(
        remote_rm_url=["agent"], n_samples_per_prompt=N, micro_rollout_batch_size=2, use_dynamic_batch=False,
        advantage_estimator=estimator, gamma=1.0, lambd=1.0, reward_clip_range=(-10, 10), init_kl_coef=0,
        overlong_buffer_len=None, stop_properly_penalty_coef=None, use_kl_loss=False, ring_attn_size=1,
        ds_tensor_parallel_size=1, colocate_all_models=False, colocate_actor_ref=False, rollout_batch_size=2,
        max_epochs=1, train_batch_size=4,
    )  # fmt: skip


def response(script, replies, reward):
    template = template_for(TOKENIZER)
    policy = EnginePolicy(template, ScriptedEngine(template.codec, script), params(), 900)
    _, made = asyncio.run(roll_out(Library(replies=replies), policy, LIMITS, 9))
    return {"prompt": "where?", "label": "", **made, "reward": reward, "scores": reward}


def made_experiences(responses, monkeypatch, *estimator):
    """Return the result of make_experience_batch, with log-probs that identify their tokens instead of the actor's."""
    args = arguments(*estimator)
    generator = SamplesGenerator.__new__(SamplesGenerator)
    generator.args, generator.tokenizer = args, TOKENIZER
    rollouts = [branches.experience_of(generator, one, max_new_tokens=900) for one in responses]
    maker = RemoteExperienceMaker(
        None, None, None, None, SimpleNamespace(value=0.0), SimpleNamespace(args=args), TOKENIZER
    )

    def make_experience(batches):
        for batch in batches:
            batch.action_log_probs = -batch.sequences[:, 1:] / 100.0
            batch.kl = torch.zeros_like(batch.action_log_probs)
            batch.info["kl"] = torch.zeros(len(batch.sequences))
        return batches

    monkeypatch.setattr(maker, "make_experience", make_experience)
    return rollouts, maker.make_experience_batch(rollouts)


def four(monkeypatch, *estimator, branching=True):
    """Two prompts with two samples each. The first and the last rollout have branches, or none does."""
    scripts = [THOUGHTFUL if branching else PLAIN, PLAIN, PLAIN, THOUGHTFUL if branching else PLAIN]
    replies = [["a", "b", "c"], [], [], ["a"]]
    responses = [response(*each) for each in zip(scripts, replies, [1.0, 0.0, 0.5, 0.5], strict=True)]
    return made_experiences(responses, monkeypatch, *estimator)


@pytest.mark.parametrize("estimator", ["dr_grpo", "rloo", "group_norm"])
def test_baselines_count_rollouts_and_branches_share_the_advantage(monkeypatch, estimator):
    rollouts, made = four(monkeypatch, estimator)
    assert [len(rollout.branches) for rollout in rollouts] == [3, 0, 0, 1]
    _, single = four(monkeypatch, estimator, branching=False)
    for batch, plain in zip(made, single, strict=True):
        assert batch.index == plain.index and torch.equal(batch.rewards, plain.rewards)
        for number, rows in enumerate(batch.branches):
            want = plain.advantages[number][plain.action_mask[number].bool()][0]
            for row, advantage in [(batch, batch.advantages[number]), *((row, row.advantages[0]) for row in rows)]:
                mask = row.action_mask[number if row is batch else 0].bool()
                assert mask.any() and (advantage[mask] == want).all()
        assert torch.equal(batch.info["group_reward_std"], plain.info["group_reward_std"])


def buffered(made, micro):
    buffer = NaiveReplayBuffer(micro, cpu_offload=False)
    for batch in made:
        buffer.append(batch)
    return buffer


def test_token_records_of_ranks_are_matched_to_their_rollouts(monkeypatch):
    """Each row of a micro-batch by its rollout, a rollout's branches before its last sample."""
    rollouts, made = four(monkeypatch)
    step_metrics.before_training(made)
    by_number = {}
    for batch in DataLoader(buffered(made, 2), batch_size=2, collate_fn=NaiveReplayBuffer(2).collate_fn):
        mask, log_probs = batch.action_mask.bool(), -batch.sequences[:, 1:] / 100.0
        numbers = [int(number) for number in batch.info["sample"]]
        empty = torch.zeros(0)
        note = MicroBatch(
            numbers, mask.sum(-1).tolist(), 0.0, log_probs[mask], empty, log_probs[mask], empty, empty, empty
        )
        assert len(numbers) == 2 + sum(len(rollouts[number].branches) for number in set(numbers))
        by_number |= log_probs_by_sample([note])
    for number, rollout in enumerate(rollouts):
        assert by_number[number].tolist() == torch.cat([-tokens / 100.0 for tokens, *_ in parts_of(rollout)]).tolist()


def parts_of(rollout):
    """The sampled tokens of each sample of a rollout, and the engine's log-probs of them."""
    for row in (*rollout.branches, rollout):
        mask = row.action_mask.bool()
        yield row.sequences[:, 1:][mask], row.rollout_log_probs[mask]


def test_the_metrics_of_a_step_are_over_the_tokens_of_all_samples_of_a_rollout(monkeypatch):
    rollouts, made = four(monkeypatch)
    for batch in made:  # of the trainer: 0.01 nat above the engine, in the last branch of the last rollout 2 nats
        for row in (batch, *(row for rows in batch.branches for row in rows)):
            row.action_log_probs = row.rollout_log_probs + 0.01
    made[1].branches[1][0].action_log_probs = made[1].branches[1][0].rollout_log_probs - 2
    step_metrics.before_training(made)
    micro_batches = []
    for batch in DataLoader(buffered(deepcopy(made), 2), batch_size=2, collate_fn=NaiveReplayBuffer(2).collate_fn):
        mask, tokens = batch.action_mask.bool(), int(batch.action_mask.sum())
        numbers, empty = [int(number) for number in batch.info["sample"]], torch.zeros(tokens)
        noted = batch.action_log_probs[mask]
        lengths = mask.sum(-1).tolist()
        micro_batches.append(MicroBatch(numbers, lengths, 0.0, noted, empty, noted, empty, empty, empty))
    args = SimpleNamespace(**vars(arguments()), eps_clip_low_high=(0.2, 0.2), old_log_probs="trainer")
    status = {"micro_batches": micro_batches, "grad_norms": []}
    step_metrics.after_training(status, made, rollouts, args, TOKENIZER)
    parts = [list(parts_of(rollout)) for rollout in rollouts]
    lengths = torch.tensor([sum(len(tokens) for tokens, _ in part) for part in parts]).double()
    advantages = torch.tensor([0.5, -0.5, 0.0, 0.0]).double()
    assert status["sampled_tokens"] == lengths.sum() and status["response_length_max"] == lengths.max()
    assert status["response_length_p50"] == lengths.quantile(0.5)
    assert status["token_advantage_mean"] == pytest.approx(float((advantages * lengths).sum() / lengths.sum()))
    apart = sum(len(tokens) for tokens, _ in parts[3][:1])
    assert status["logprob_diff_max"] == pytest.approx(2.0)
    assert status["logprob_diff_mean"] == pytest.approx(
        float((2 * apart + 0.01 * (lengths.sum() - apart)) / lengths.sum()), rel=1e-4
    )
    lowest = rollouts[3].details["least_likely_tokens"]
    assert [token["branch"] for token in lowest] == [0] * 3 and all(
        token["trainer"] == pytest.approx(token["engine"] - 2) for token in lowest
    )


def test_untrained_samples_are_excluded_from_token_metrics(monkeypatch):
    rollouts, made = made_experiences([response(PLAIN, [], 1.0), response(THOUGHTFUL, ["a"], math.nan)], monkeypatch)
    step_metrics.before_training(made)
    args = SimpleNamespace(**vars(arguments()), eps_clip_low_high=(0.2, 0.2))
    length = int(rollouts[0].action_mask.sum())
    values = torch.full((length,), -1.0)
    status = {"micro_batches": [MicroBatch([0], [length], 0.0, *[values] * 6)], "grad_norms": [1.0]}
    step_metrics.after_training(status, made, rollouts, args, TOKENIZER)
    assert status["sampled_tokens"] == status["response_length_p50"] == status["response_length_max"] == length
    trained, untrained = (rollout.details["least_likely_tokens"] for rollout in rollouts)
    assert [token["trainer"] for token in trained] == [-1] * 3
    assert {token["trainer"] for token in untrained} == {None}


@pytest.mark.parametrize("micro", [1, 2])
def test_branches_do_not_change_micro_batches(monkeypatch, micro):
    rollouts, made = four(monkeypatch)
    buffer = buffered(made, micro)
    assert len(buffer) == 4
    loader = DataLoader(buffer, batch_size=micro, shuffle=False, drop_last=True, collate_fn=buffer.collate_fn)
    batches = list(loader)
    assert len(batches) == 4 // micro
    assert sum(len(batch.sequences) for batch in batches) == 8
    # Each sampled token of each rollout is there once, with its log-prob from the engine.
    trained = Counter(
        (row[1:][: len(mask)][mask.bool()].tolist().__repr__(), log_probs[mask.bool()].tolist().__repr__())
        for batch in batches
        for row, mask, log_probs in zip(batch.sequences, batch.action_mask, batch.rollout_log_probs, strict=True)
    )
    sampled = Counter(
        (row.sequences[0, 1:][row.action_mask[0].bool()].tolist().__repr__(),
         row.rollout_log_probs[0][row.action_mask[0].bool()].tolist().__repr__())
        for rollout in rollouts
        for row in (rollout, *rollout.branches)
    )  # fmt: skip
    assert trained == sampled
    for batch in batches:  # logs are means over rollouts
        assert batch.info and all(len(values) == micro for values in batch.info.values())


@pytest.mark.parametrize("micro", [1, 2, 4])
@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "constant"])
def test_the_loss_counts_a_rollout_once_with_any_number_of_samples(monkeypatch, aggregation, micro):
    """In float64, over the rollouts, for any batching by OpenRLHF's own loader."""
    rollouts, made = four(monkeypatch)
    step_metrics.before_training(made)
    made[1].advantages = made[1].advantages + 0.25 * made[1].action_mask
    for rows in made[1].branches:
        for row in rows:
            row.advantages = row.advantages + 0.25 * row.action_mask
    lengths = [sum(len(tokens) for tokens, _ in parts_of(rollout)) for rollout in rollouts]
    assert len({len(rollout.branches) for rollout in rollouts}) == 3 and len(set(lengths)) > 1
    buffer = buffered(made, micro)
    strategy = SimpleNamespace(
        world_size=1, accumulated_gradient=4 // micro, all_reduce=lambda values, operation: values
    )
    args = SimpleNamespace(
        loss_aggregation=aggregation, generate_max_len=900, policy_loss_type="ppo", eps_clip_low_high=(0.2, 0.2),
        dual_clip=None, enable_vllm_is_correction=False, advantage_clip=None,
    )  # fmt: skip
    loss, total, steps = PolicyLoss(args), 0.0, torch.zeros(0)
    loader = DataLoader(buffer, batch_size=micro, shuffle=True, collate_fn=buffer.collate_fn)
    for batch in loss.batches(loader, buffer, strategy):
        moved = (batch.action_log_probs + 0.05).requires_grad_()
        value = loss(moved, batch.action_log_probs, batch.advantages, action_mask=batch.action_mask)[0]
        (value / strategy.accumulated_gradient).backward()
        total += float(value) / strategy.accumulated_gradient
        steps = torch.cat([steps, moved.grad[batch.action_mask.bool()]])
    advantages = torch.tensor([0.5, -0.5, 0.25, 0.25], dtype=torch.float64)
    sampled = torch.tensor(lengths)
    of_token = {"sequence_mean": 1 / (4 * sampled), "token_mean": 1 / sampled.sum()}.get(aggregation, 1 / (4 * 900))
    of_token = -torch.tensor(0.05, dtype=torch.float64).exp() * advantages * of_token
    assert total == pytest.approx(float((of_token * sampled).sum()), rel=1e-4)
    tokens = of_token.repeat_interleave(sampled)
    torch.testing.assert_close(steps.double().sort().values, tokens.sort().values, rtol=1e-4, atol=1e-9)


def test_rollouts_without_branches_stay_as_they_are(monkeypatch):
    rollouts, made = four(monkeypatch, branching=False)
    assert not any(rollout.branches for rollout in rollouts)
    batches = [SimpleNamespace(index=[0, 1])]
    assert branches.with_branches(batches, rollouts, 0) is batches and branches.apart(batches) == batches
    assert all(not hasattr(batch, "branches") for batch in made)


def test_the_length_of_a_response_counts_sampled_tokens_of_all_samples(monkeypatch):
    rollouts, _ = four(monkeypatch)
    for rollout in rollouts:
        counted = sum(int(row.action_mask.sum()) for row in (rollout, *rollout.branches))
        assert int(rollout.info["response_length"]) == counted


@pytest.mark.parametrize("harm", ["token", "mask", "log-prob", "cut"])
def test_the_trainers_tokens_are_compared_with_the_engines(monkeypatch, caplog, harm):
    good, bad = response(PLAIN, [], 1.0), response(PLAIN, [], 0.0)
    start, end = bad["action_ranges"][0]
    if harm == "token":
        bad["observation_tokens"][start + 1] += 1
    elif harm == "mask":
        bad["action_ranges"] = [(start - 1, end)]
    elif harm == "log-prob":
        bad["rollout_log_probs"][start + 1] = 0.0
    else:
        bad["observation_tokens"] = bad["observation_tokens"][:-1]
    (fine, harmed), made = made_experiences([good, bad], monkeypatch)
    assert fine.info["token_mismatch"] == 0 and harmed.info["token_mismatch"] == 1
    at = {"token": start + 1, "mask": start - 1, "log-prob": start + 1, "cut": end - 1}[harm]
    assert f"at position {at}, after" in caplog.text
    assert not made[0].advantages.any()  # it has no advantage, and only the other one counts for the baseline


def test_a_plain_response_without_a_log_prob_is_counted_and_not_trained_on(monkeypatch, caplog):
    plain = {"prompt": "p", "label": "", "action_ranges": [(2, 4)], "observation_tokens": [5, 6, 7, 8]}
    good = plain | {"reward": 1.0, "scores": 1.0, "rollout_log_probs": [0.0, 0.0, -1.0, 0.0]}
    bad = plain | {"reward": 0.0, "scores": 0.0, "rollout_log_probs": [0.0, 0.0, -1.0, math.nan]}
    (fine, harmed), (batch,) = made_experiences([good, bad], monkeypatch)
    assert fine.info["token_mismatch"] == 0 and harmed.info["token_mismatch"] == 1
    assert batch.action_mask.bool().any(-1).tolist() == [True, False] and batch.rollout_log_probs.isfinite().all()
    assert "no log-prob for the token at position 3" in caplog.text


def test_a_single_response_with_an_account_is_checked(monkeypatch, caplog):
    """For instance, the response of a thinking budget."""
    one = response(PLAIN, [], 1.0)
    del one["branches"]
    one["observation_tokens"][-1] += 1
    (harmed, _), _ = made_experiences([one, response(PLAIN, [], 0.0)], monkeypatch)
    assert harmed.info["token_mismatch"] == 1 and "a sample differs first" in caplog.text


def test_a_branch_that_differs_is_left_out(monkeypatch, caplog):
    one = response(THOUGHTFUL, ["a", "b"], 1.0)
    one["branches"][0]["observation_tokens"][3] += 1
    (rollout, _), _ = made_experiences([one, response(PLAIN, [], 0.0)], monkeypatch)
    assert len(rollout.branches) == 1 and rollout.info["token_mismatch"] == 1
    assert "a sample differs first at position 3" in caplog.text


def test_a_rollout_without_sampled_tokens_is_not_trained_on(monkeypatch):
    template = template_for(TOKENIZER)
    policy = EnginePolicy(template, ScriptedEngine(template.codec, PLAIN), params(), 3)  # no room for the prompt
    _, made = asyncio.run(roll_out(Library(), policy, LIMITS, 9))
    empty = {"prompt": "where?", "label": "", **made}
    (whole, nothing), batches = made_experiences([response(PLAIN, [], 1.0), empty], monkeypatch)
    assert nothing.info["reward_missing"] == 1 and not batches[0].advantages[1].any()
    for name in ("response_length", "total_length"):
        assert name in nothing.missing and nothing.info[name] == whole.info[name], "the mean of those that have one"
    assert batches[0].action_mask[0].any() and not batches[0].action_mask[1].any()


def test_rollout_without_a_reward_does_not_affect_the_update(monkeypatch):
    """This also holds for its branches, and with a length penalty, which would give it an advantage."""
    args = arguments()
    args.overlong_buffer_len, args.overlong_penalty_factor = 900.0, 0.5
    monkeypatch.setitem(globals(), "arguments", lambda *_: args)
    good, bad = response(PLAIN, [], 1.0), response(THOUGHTFUL, ["a", "b"], math.nan)
    _, (batch,) = made_experiences([good, bad], monkeypatch)
    assert batch.rewards[0] < 1 and batch.rewards[1] == batch.rewards[0]  # only the others count for the baseline
    assert len(batch.branches[1]) == 2
    for row, number in [(batch, 1), *((row, 0) for row in batch.branches[1])]:
        assert not row.action_mask[number].any() and not row.advantages[number].any()
    item = next(iter(DataLoader(buffer := buffered([batch], 2), batch_size=2, collate_fn=buffer.collate_fn)))
    assert item.action_mask.bool().any(-1).tolist() == [True, False, False, False]


def test_sample_cut_by_the_trainer_before_its_response_is_accepted():
    empty = SimpleNamespace(
        action_mask=torch.zeros(1, 4), advantages=torch.ones(1, 4), returns=torch.ones(1, 4), info={},
        branches=[[SimpleNamespace(action_mask=torch.ones(1, 4))]],
    )  # fmt: skip
    branches.give_advantages([empty])
    assert not empty.branches[0][0].advantages.any()
