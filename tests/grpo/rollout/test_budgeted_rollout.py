"""Rollouts with a thinking budget, on an engine that can be cut at every token and rejects invalid requests.

Sampled tokens, forced tokens and calls do not depend on a model: the engine replays token streams.
"""

import asyncio
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from grpo.rollout.budgeted_rollout import answer_seed, budgeted_response
from grpo.rollout.thinking import Budget
from grpo.rollout.trajectory import Origin
from scripts.tiny_model.tokenizer import STOP_TOKENS
from tests.grpo.rollout.replayed_engine import (
    ANALYSIS,
    CONTEXT,
    FINAL,
    HARMONY,
    PROMPT,
    STOPS,
    STREAM,
    TOKENIZER,
    WHOLE,
    Engine,
    encode_text,
    make_log_prob,
)

SIZE = len(HARMONY.tokens)


def roll_out_streams(streams, thinking, answer, prompt=PROMPT, seed=0, cached=0, max_length=CONTEXT, **params):
    engine = Engine([list(stream) for stream in streams], random.Random(seed), cached)
    asked = SamplingParams(**{"max_tokens": CONTEXT, "min_tokens": 1, "seed": 7, "logprobs": 0, **params})
    budget = Budget(thinking, answer)
    made = asyncio.run(budgeted_response(engine, prompt, asked, HARMONY, budget, max_length))
    return made, engine


def pick_tokens(made, origin) -> list[int]:
    pairs = zip(made.trajectory.tokens, made.trajectory.origins, strict=True)
    return [token for token, one in pairs if one is origin]


PROMPTS = st.sampled_from(
    [
        PROMPT,
        PROMPT[:1],
        encode_text("7" * 40) + PROMPT,
        PROMPT + encode_text(ANALYSIS),
        PROMPT + encode_text(FINAL)[3:],
    ]
)


@settings(max_examples=400, deadline=None)
@given(STREAM, STREAM, st.integers(0, 40), st.integers(2, 40), PROMPTS, st.integers(0, 9), st.integers(11, 70))
def test_no_stream_goes_beyond_a_budget(first, second, thinking, answer, prompt, seed, most):
    room = min(CONTEXT - len(prompt), most)
    made, engine = roll_out_streams([first, second], thinking, answer, prompt, seed, max_tokens=most)
    trajectory = made.trajectory
    forced = trajectory.count(Origin.FORCED)
    answered = trajectory.count(Origin.SAMPLED) - made.thought
    fitted = Budget(thinking, answer).within(room, SIZE)
    assert made.thought <= fitted.thinking <= thinking
    assert answered <= fitted.answer <= answer
    assert len(trajectory.tokens) - len(prompt) <= min(thinking + SIZE + answer, room)
    assert trajectory.tokens[: len(prompt)] == prompt
    assert trajectory.count(Origin.SAMPLED) >= 1 and 1 <= len(engine.calls) <= 2
    assert (forced > 0) == made.logs()["thinking_truncated"]
    # The last sampled token is a stop token exactly where nothing was cut.
    assert made.is_truncated == (trajectory.tokens[-1] not in STOPS)
    assert not any(token in STOPS for token in pick_tokens(made, Origin.SAMPLED)[:-1])


@settings(max_examples=300, deadline=None)
@given(STREAM, st.integers(0, 40), st.integers(2, 40), PROMPTS, st.integers(0, 9))
def test_a_budget_that_is_not_hit_changes_no_token(first, thinking, answer, prompt, seed):
    made, engine = roll_out_streams([first, [5]], thinking, answer, prompt, seed)
    alone, reason = engine.make_whole_output(0, CONTEXT - len(prompt))
    if made.logs()["thinking_truncated"]:
        assert pick_tokens(made, Origin.SAMPLED)[: made.thought] == alone[: made.thought]
        return
    [(_, params)] = engine.calls
    response = made.trajectory.tokens[len(prompt) :]
    assert params.seed == 7 and params.prompt_logprobs is None
    assert response == alone[: len(response)]
    assert (response == alone and reason == "stop") or made.is_truncated
    assert made.trajectory.log_probs[len(prompt) :] == [make_log_prob(token).logprob for token in response]


def cut_thought(response: str, thinking: int, answer: int = 4, second: str = "8<|return|>", **more):
    """Return the text of the forced tokens, and the rollout, of a response under a budget."""
    made, engine = roll_out_streams([encode_text(response), encode_text(second)], thinking, answer, **more)
    return TOKENIZER.decode(pick_tokens(made, Origin.FORCED), skip_special_tokens=False), made, engine


@pytest.mark.parametrize("thinking", range(1, len(encode_text(ANALYSIS + "777" + FINAL))))
def test_cut_thought_gets_the_missing_part_of_the_delimiter(thinking):
    forced, made, engine = cut_thought(WHOLE, thinking)
    response = TOKENIZER.decode(made.trajectory.tokens[len(PROMPT) :], skip_special_tokens=False)
    assert forced and response.endswith(forced + "8<|return|>")
    assert response.count("final<|message|>") == 1 and response.count("<|end|>") <= 1
    assert made.thought == thinking and not made.is_truncated and made.is_closed
    assert len(engine.calls) == 2 and engine.aborted == 1


@pytest.mark.parametrize("thinking", range(len(encode_text(ANALYSIS + "777" + FINAL)), 25))
def test_thought_that_ends_in_time_is_unchanged(thinking):
    forced, made, engine = cut_thought(WHOLE, thinking)
    assert forced == "" and len(engine.calls) == 1 and engine.aborted == 0
    assert made.trajectory.tokens[len(PROMPT) :] == encode_text(WHOLE)
    assert made.logs() == pytest.approx(
        {
            "prompt_length": len(PROMPT), "thinking_truncated": 0, "thinking_closed": 1,
            "thinking_length": len(encode_text(ANALYSIS + "777" + FINAL)), "answer_length": 3, "answer_truncated": 0,
            "delimiter_log_prob": math.nan,
        },
        nan_ok=True,
    )  # fmt: skip


@pytest.mark.parametrize("end", STOP_TOKENS)
@pytest.mark.parametrize("slack", [0, 1, 9])
def test_an_end_of_sequence_inside_the_thinking_ends_the_sample(end, slack):
    response = ANALYSIS + "777" + end
    forced, made, engine = cut_thought(response, len(encode_text(response)) + slack)
    assert forced == "" and len(engine.calls) == 1 and made.trajectory.tokens[len(PROMPT) :] == encode_text(response)
    logs = made.logs()
    assert logs["thinking_truncated"] == logs["thinking_closed"] == logs["answer_truncated"] == 0
    assert math.isnan(logs["answer_length"]) and logs["thinking_length"] == len(encode_text(response))


def test_an_end_of_sequence_one_token_after_the_budget_is_ignored():
    response = ANALYSIS + "777<|return|>"
    for seed in range(9):  # in the same output as the last token, and in the next one
        forced, made, _ = cut_thought(response, len(encode_text(response)) - 1, seed=seed)
        assert forced == FINAL and made.logs()["answer_length"] == 2
        assert pick_tokens(made, Origin.SAMPLED) == encode_text(ANALYSIS + "777") + encode_text("8<|return|>")


def test_a_prompt_that_leaves_little_room_shortens_the_thinking_and_then_the_answer():
    lengths = []
    for room in range(SIZE + 2, SIZE + 12):
        prompt = encode_text("7" * (CONTEXT - len(PROMPT) - room)) + PROMPT
        _, made, engine = cut_thought(ANALYSIS + "7", 5, answer=4, second="8", prompt=prompt)
        lengths.append((made.thought, int(made.logs()["answer_length"])))
        assert len(made.trajectory.tokens) <= CONTEXT and len(engine.calls) == 1 + (made.thought > 0)
    # Without thinking, the delimiter is shorter: it begins in the prompt.
    assert lengths == [(0, 2), (0, 3), (0, 4), (1, 4), (2, 3), (3, 4), (4, 4), (5, 4), (5, 4), (5, 4)]
    with pytest.raises(ValueError, match="prompt"):
        cut_thought(WHOLE, 5, prompt=encode_text("7" * (CONTEXT - len(PROMPT) - SIZE - 1)) + PROMPT)


def test_the_second_call_draws_from_another_stream():
    _, _, engine = cut_thought(WHOLE, 4)
    (_, first), (_, second) = engine.calls
    assert first.seed == 7 and second.seed == answer_seed(7)
    assert not {answer_seed(seed) for seed in range(64)} & set(range(64)), "those of the prompt's other samples"
    assert len({answer_seed(seed) for seed in range(64)}) == 64
    assert (first.min_tokens, second.min_tokens) == (1, 0) and first.output_kind is RequestOutputKind.DELTA


@pytest.mark.parametrize(
    "cached, is_known", [(0, True), (len(PROMPT) + 4, True), (len(PROMPT) + 5, False), (99, False)]
)
def test_forced_tokens_have_a_log_prob_unless_cached(cached, is_known):
    forced, made, _ = cut_thought(ANALYSIS + "77", 5, cached=cached)
    assert len(encode_text(ANALYSIS + "77")) == 5 and forced == FINAL
    if is_known:
        assert made.delimiter_log_prob == pytest.approx(
            sum(make_log_prob(token).logprob for token in encode_text(FINAL))
        )
    else:
        assert math.isnan(made.delimiter_log_prob)
    assert not any(pick_log_probs(made, Origin.FORCED)), "none is trained on"


def pick_log_probs(made, origin) -> list[float]:
    pairs = zip(made.trajectory.log_probs, made.trajectory.origins, strict=True)
    return [value for value, one in pairs if one is origin]
