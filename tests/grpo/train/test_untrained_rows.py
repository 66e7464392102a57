"""Rollouts and branches that must not be trained on: their tokens or log-probs differ, or they have no reward."""

import asyncio
import math

import pytest

from grpo.rollout.harmony import template_for
from grpo.rollout.multi_turn import EnginePolicy, roll_out
from grpo.train import micro_batches
from tests.grpo.environments.scripted import LIMITS, Library, ScriptedEngine, make_params

from .made_batches import PLAIN, THOUGHTFUL, TOKENIZER, list_rows, make_arguments, make_batches, make_response


@pytest.mark.parametrize("harm", ["token", "mask", "log-prob", "cut"])
def test_the_trainers_tokens_are_compared_with_the_engines(monkeypatch, caplog, harm):
    good, bad = make_response(PLAIN, [], 1.0), make_response(PLAIN, [], 0.0)
    start, end = bad["action_ranges"][0]
    if harm == "token":
        bad["observation_tokens"][start + 1] += 1
    elif harm == "mask":
        bad["action_ranges"] = [(start - 1, end)]
    elif harm == "log-prob":
        bad["rollout_log_probs"][start + 1] = 0.0
    else:
        bad["observation_tokens"] = bad["observation_tokens"][:-1]
    (fine, harmed), made = make_batches([good, bad], monkeypatch)
    assert fine.info["token_mismatch"] == 0 and harmed.info["token_mismatch"] == 1
    at = {"token": start + 1, "mask": start - 1, "log-prob": start + 1, "cut": end - 1}[harm]
    assert f"at position {at}, after" in caplog.text
    assert not made[0].advantages.any()  # it has no advantage, and only the other one counts for the baseline


def test_a_plain_response_without_a_log_prob_is_counted_and_not_trained_on(monkeypatch, caplog):
    plain = {"prompt": "p", "label": "", "action_ranges": [(2, 4)], "observation_tokens": [5, 6, 7, 8]}
    good = plain | {"reward": 1.0, "scores": 1.0, "rollout_log_probs": [0.0, 0.0, -1.0, 0.0]}
    bad = plain | {"reward": 0.0, "scores": 0.0, "rollout_log_probs": [0.0, 0.0, -1.0, math.nan]}
    (fine, harmed), (batch,) = make_batches([good, bad], monkeypatch)
    assert fine.info["token_mismatch"] == 0 and harmed.info["token_mismatch"] == 1
    assert batch.action_mask.bool().any(-1).tolist() == [True, False] and batch.rollout_log_probs.isfinite().all()
    assert "no log-prob for the token at position 3" in caplog.text


def test_a_branch_that_differs_is_left_out(monkeypatch, caplog):
    one = make_response(THOUGHTFUL, ["a", "b"], 1.0)
    one["branches"][0]["observation_tokens"][3] += 1
    (rollout, _), _ = make_batches([one, make_response(PLAIN, [], 0.0)], monkeypatch)
    assert len(rollout.branches) == 1 and rollout.info["token_mismatch"] == 1
    assert "a row differs first at position 3" in caplog.text


def test_a_rollout_without_sampled_tokens_is_not_trained_on(monkeypatch):
    template = template_for(TOKENIZER)
    policy = EnginePolicy(template, ScriptedEngine(template.codec, PLAIN), make_params(), 3)  # no room for the prompt
    _, made = asyncio.run(roll_out(Library, policy, LIMITS, 9))
    empty = {"prompt": "where?", "label": "", **made}
    (whole, nothing), batches = make_batches([make_response(PLAIN, [], 1.0), empty], monkeypatch)
    assert nothing.info["reward_missing"] == 1 and not batches[0].advantages[1].any()
    for name in ("response_length", "total_length"):
        assert name in nothing.missing and nothing.info[name] == whole.info[name], "the mean of those that have one"
    assert batches[0].action_mask[0].any() and not batches[0].action_mask[1].any()


def test_rollout_without_a_reward_does_not_affect_the_update(monkeypatch):
    """This also holds for its branches, and with a length penalty, which would give it an advantage."""
    args = make_arguments()
    args.overlong_buffer_len, args.overlong_penalty_factor = 900.0, 0.5
    monkeypatch.setitem(make_batches.__globals__, "make_arguments", lambda *_: args)
    good, bad = make_response(PLAIN, [], 1.0), make_response(THOUGHTFUL, ["a", "b"], math.nan)
    _, (batch,) = make_batches([good, bad], monkeypatch)
    assert batch.info["length_penalty"][0] > 0 and batch.rewards[1].isnan() and not batch.advantages.any()
    assert batch.index == [0, 1, 1, 1] and not batch.action_mask[1:].any()
    item = micro_batches.join_rollouts(list_rows([batch]))
    assert item.action_mask.bool().any(-1).tolist() == [True, False, False, False]
