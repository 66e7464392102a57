"""Loops and gibberish: what is found, and that it changes nothing for the rest of its group."""

import math
import random
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.batch import degenerate
from grpo.batch.degenerate import BABBLE, LOOP

from .made_experiences import ESTIMATORS, make_arguments, make_experiences

DOCS = Path(__file__).parents[3] / "docs"
LIMITS = {"drop_repetition": 0.8, "drop_gibberish": 5.0}


def make_row(tokens, log_probs=None, mask=None) -> SimpleNamespace:
    """A row with one token of prompt."""
    return SimpleNamespace(
        sequences=torch.tensor([[9, *tokens]]),
        action_mask=torch.tensor([[1] * len(tokens) if mask is None else mask]),
        rollout_log_probs=None if log_probs is None else torch.tensor([log_probs], dtype=torch.float32),
    )


@pytest.mark.parametrize(("text", "share"), [("", 0), ("ab", 0), ("abcd", 0), ("aaaaaa", 0.75), ("abcabc", 0.25)])
def test_repetition_is_the_share_of_grams_seen_before(text, share):
    assert degenerate.repetition([ord(letter) for letter in text]) == share


def list_grams(tokens) -> list[tuple]:
    return list(zip(tokens, tokens[1:], tokens[2:], strict=False))


@settings(max_examples=50)
@given(st.integers(1, 400), st.integers(0, 900), st.integers(2, 60), st.integers(0, 9))
def test_repetition_is_that_of_the_worst_stretch(period, loop, before, seed):
    draw = random.Random(seed)
    word = [draw.randrange(1000) for _ in range(period)]
    tokens = [draw.randrange(1000) for _ in range(before)] + (word * (loop // period + 1))[:loop]
    windows = [tokens[first : first + LOOP] for first in range(max(1, len(tokens) - LOOP + 1))]
    shares = [
        1 - len(Counter(list_grams(window))) / len(list_grams(window)) for window in windows if list_grams(window)
    ]
    assert degenerate.worst_repetition(make_row(tokens)) == pytest.approx(max(shares, default=0), abs=1e-12)


@settings(max_examples=50)
@given(st.lists(st.floats(-20, 0, width=32), min_size=1, max_size=200))
def test_surprise_is_that_of_the_worst_stretch(log_probs):
    size = min(BABBLE, len(log_probs))
    means = [-math.fsum(log_probs[at : at + size]) / size for at in range(len(log_probs) - size + 1)]
    assert degenerate.worst_surprise(make_row(range(len(log_probs)), log_probs)) == pytest.approx(max(means), abs=1e-6)


def test_a_loop_after_a_long_healthy_text_is_found_and_pages_are_healthy():
    words = re.findall(r"\w+|\S", " ".join(page.read_text() for page in sorted(DOCS.glob("*.md"))))
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    text = [numbers[word] for word in words]
    assert len(text) > 20_000 and degenerate.worst_repetition(make_row(text)) < 0.8
    looped = text + text[1000 : 1000 + LOOP // 6] * 6
    assert degenerate.worst_repetition(make_row(looped)) > 0.8 > degenerate.repetition(looped)
    healthy = [-0.5] * len(text)
    assert degenerate.worst_surprise(make_row(text, healthy)) == pytest.approx(0.5)
    random_tokens = [-math.log(200_000)] * BABBLE  # a uniform distribution over the vocabulary
    assert degenerate.worst_surprise(make_row(text + text[:BABBLE], healthy + random_tokens)) > 12


def test_stretches_end_at_tokens_that_were_not_sampled_and_with_their_branch():
    """Three equal turns are no loop, in one row or in three."""
    turn, tool = list(range(100, 140)), [7, 8]
    tokens, mask = (turn + tool) * 3, ([1] * 40 + [0] * 2) * 3
    whole = make_row(tokens, [-1.0 if sampled else -99.0 for sampled in mask], mask)
    assert degenerate.worst_repetition(whole) == 0 and degenerate.worst_surprise(whole) == 1
    branched = make_row(turn)
    branched.branches = [make_row(turn), make_row(turn, [-3.0] * 40)]
    assert degenerate.worst_repetition(branched) == 0 and degenerate.worst_surprise(branched) == 3
    assert degenerate.worst_repetition(make_row(turn * 3)) > 0.6, (
        "but a turn that says the same three times repeats itself"
    )


def test_nothing_is_marked_without_a_limit():
    sample = make_row([1] * 99)
    sample.info = {}
    degenerate.mark([sample], SimpleNamespace(drop_repetition=None, drop_gibberish=None))
    assert sample.info == {}


def make_kind_of_response(reward: float, kind: str) -> dict:
    length = 60 if kind == "fine" else 90
    tokens = [5] * length if kind == "loop" else list(range(100, 100 + length))
    log_probs = [-9.0 if kind == "gibberish" else -0.5] * length
    return {
        "prompt": "p", "label": "", "reward": reward, "scores": reward, "truncated": False, "extra_logs": {},
        "observation_tokens": [3, 4, *tokens], "action_ranges": [(2, 2 + length)],
        "rollout_log_probs": [0.0, 0.0, *log_probs],
    }  # fmt: skip


def make_limited_experiences(responses, monkeypatch, estimator="dr_grpo", **changes):
    args = make_arguments(estimator)
    vars(args).update(n_samples_per_prompt=4, micro_rollout_batch_size=4, **LIMITS | changes)
    monkeypatch.setitem(make_experiences.__globals__, "make_arguments", lambda *_: args)
    return make_experiences(responses, monkeypatch)


@pytest.mark.parametrize("penalty", [None, 850.0])
@pytest.mark.parametrize("kind", ["loop", "gibberish"])
def test_a_degenerate_rollout_is_not_in_the_update_nor_in_the_mean_of_its_group(monkeypatch, kind, penalty):
    responses = [
        make_kind_of_response(1.0, "fine"),
        make_kind_of_response(0.0, kind),
        make_kind_of_response(0.0, "fine"),
        make_kind_of_response(1.0, "fine"),
    ]
    penalties = {"overlong_buffer_len": penalty, "overlong_penalty_factor": 0.5}
    samples, (batch,) = make_limited_experiences(responses, monkeypatch, **penalties)
    assert [float(sample.info["degenerate"]) for sample in samples] == [0, 1, 0, 0]
    assert [float(sample.info[f"degenerate_{name}"]) for name in ("repetition", "gibberish") for sample in samples] == [
        *(0, float(kind == "loop"), 0, 0),
        *(0, float(kind == "gibberish"), 0, 0),
    ]
    assert batch.action_mask.bool().any(-1).tolist() == [True, False, True, True]
    means = [float(batch.advantages[number][batch.action_mask[number].bool()].mean()) for number in (0, 2, 3)]
    assert means == pytest.approx([1 / 3, -2 / 3, 1 / 3], abs=1e-6) and not batch.advantages[1].any()
    assert batch.info["reward"].tolist() == [1, 0, 0, 1] and batch.info["reward_missing"].tolist() == [0] * 4


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kinds", [["loop"] * 4, ["loop"] * 3 + ["fine"]])
def test_a_group_without_others_has_no_advantages(monkeypatch, estimator, kinds):
    responses = [make_kind_of_response(reward, kind) for reward, kind in zip((1.0, 0.0, 1.0, 1.0), kinds, strict=True)]
    _, (batch,) = make_limited_experiences(responses, monkeypatch, estimator)
    assert batch.advantages.abs().max() == 0
    assert batch.action_mask.bool().any(-1).tolist() == [kind == "fine" for kind in kinds]
