"""Rollouts of responses, and a rank's rows of micro-batches, against OpenRLHF's own."""

import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.trainer.ppo_trainer import SamplesGenerator
from openrlhf.trainer.ppo_utils.replay_buffer import Experience, NaiveReplayBuffer

from grpo.rollout import rows
from grpo.train import micro_batches, rollouts
from tests.upstream import read_noted

PER_TOKEN = ("action_mask", "action_log_probs", "base_action_log_probs", "rollout_log_probs", "advantages")
COMPARED = ("sequences", "attention_mask", *PER_TOKEN)


def make_singles(seed: int) -> list[rows.Batch]:
    """Rollouts with advantages, without branches; some have no sampled token, or none of the optional log-probs."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    made = []
    for number in range(9):
        length = draw.randint(2, 9)
        per_token = {name: torch.randn(1, length - 1, generator=generator) for name in PER_TOKEN}
        per_token["action_mask"] = (per_token["action_mask"] > 0).long()
        if seed % 2:
            per_token["base_action_log_probs"] = per_token["rollout_log_probs"] = None
        reward = torch.randn(1, generator=generator)
        sequences = torch.randint(0, 5, (1, length), generator=generator)  # 0 pads, and may be a token too
        one = rows.Batch(
            sequences, torch.ones_like(sequences), per_token["action_mask"], per_token["rollout_log_probs"], ["p"],
            ["l"], reward, reward, {"reward": reward}, [number],
        )  # fmt: skip
        for name in PER_TOKEN:
            setattr(one, name, per_token[name])
        made.append(one)
    return made


def make_stock(batch: rows.Batch) -> Experience:
    return Experience(index=batch.index, info=batch.info, **{name: getattr(batch, name) for name in COMPARED})


def assert_equal(ours: rows.Batch, stock: Experience) -> None:
    for name in COMPARED:
        one, other = getattr(ours, name), getattr(stock, name)
        assert (one is None and other is None) or (torch.equal(one, other) and one.dtype == other.dtype), name
    assert ours.info.keys() == stock.info.keys()
    for name, values in stock.info.items():
        assert [float(one) for one in ours.info[name]] == [float(one) for one in values], name


@pytest.mark.parametrize("seed", range(4))
def test_a_ranks_rows_are_those_of_openrlhfs_buffer_in_any_order(monkeypatch, seed):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)  # OpenRLHF asks for it without a GPU too
    buffer, kept = NaiveReplayBuffer(2, cpu_offload=False), []
    for at in range(0, 9, 3):
        made = make_singles(seed)[at : at + 3]
        stock, ours = Experience.concat_experiences([make_stock(one) for one in made], 0), rows.join(made, 0)
        assert_equal(ours, stock)
        buffer.append(stock)
        kept += micro_batches.split_by_rollout(ours)
    assert len(kept) == len(buffer) == 9
    order = random.Random(seed).sample(range(9), 9)
    for size in (1, 2, 4):
        for at in range(0, 9, size):
            numbers = order[at : at + size]
            stock = buffer.collate_fn([buffer[number] for number in numbers])
            assert_equal(micro_batches.join_rollouts([kept[number] for number in numbers]), stock)


@st.composite
def responses(draw) -> dict:
    """Responses of OpenRLHF's executor to one prompt."""
    prompt, size = draw(st.integers(1, 4)), draw(st.integers(0, 9))
    numbers, log_probs = st.floats(-9, 9, width=32), st.floats(-9, -0.125, width=32)
    score = draw(numbers)
    return {
        "prompt": "p", "label": "l", "reward": score, "scores": draw(st.sampled_from([score, 0.0])),
        "truncated": draw(st.booleans()),
        "extra_logs": {"correct": draw(numbers), "truncated": 7.0},  # a reward may use a name of the loop
        "observation_tokens": draw(st.lists(st.integers(0, 99), min_size=prompt + size, max_size=prompt + size)),
        "action_ranges": [(prompt, prompt + size)],
        "rollout_log_probs": [0.0] * prompt + draw(st.lists(log_probs, min_size=size, max_size=size)),
    }  # fmt: skip


@given(responses(), st.integers(1, 8))
def test_a_rollout_is_what_openrlhf_makes_of_the_response(response, limit):
    args = SimpleNamespace(prompt_max_len=4, routing_replay=False)
    ours = rollouts.build_rollout(response, args, None, limit)
    generator = object.__new__(SamplesGenerator)
    limits = {"prompt_max_len": 4, "max_new_tokens": limit, "max_len": 4 + limit}  # each version reads its own
    stock = generator._process_response_into_experience(response, **limits)
    noted = read_noted(stock)
    for name in ("sequences", "attention_mask", "action_mask", "rollout_log_probs", "rewards", "scores"):
        one, other = getattr(ours, name), getattr(stock, name)
        assert torch.equal(one, other) and one.dtype == other.dtype, name
    assert (ours.prompts, ours.labels) == (stock.prompts, stock.labels)
    is_cut = len(response["observation_tokens"]) > 4 + limit
    assert bool(ours.info["truncated"]) == (response["truncated"] or is_cut)  # OpenRLHF: as the executor says
    assert torch.equal(ours.info["response_clip_ratio"], ours.info["truncated"])  # OpenRLHF: or at the limit
    for name in noted.keys() - {"truncated", "response_clip_ratio"}:
        assert torch.equal(ours.info[name], noted[name]) and ours.info[name].dtype == noted[name].dtype, name
    own = {"length_limit": float(limit), "token_mismatch": 0.0}
    assert {name: float(ours.info[name]) for name in ours.info.keys() - noted.keys()} == own
