"""Rollouts with a thinking budget, on an engine that can be cut at every token and rejects invalid requests.

Sampled tokens, forced tokens and calls do not depend on a model: the engine replays token streams.
"""

import asyncio
import math
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openrlhf.utils.agent import SingleTurnAgentExecutor
from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind

from grpo.rollout.budget_executor import AgentExecutor
from grpo.rollout.budgeted_rollout import answer_seed, budgeted_response
from grpo.rollout.thinking import Budget, environment
from grpo.rollout.trajectory import Origin
from scripts.tiny_model.tokenizer import STOP_TOKENS, write_tokenizer
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


def roll_out_streams(streams, thinking, answer, prompt=PROMPT, seed=0, max_length=CONTEXT, **params):
    engine = Engine([list(stream) for stream in streams], random.Random(seed))
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
    assert params.seed == 7
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


def test_a_thought_that_ends_with_the_last_token_of_its_budget_is_unchanged():
    forced, made, engine = cut_thought(WHOLE, len(encode_text(ANALYSIS + "777" + FINAL)))
    assert forced == "" and len(engine.calls) == 1 and engine.aborted == 0
    assert made.trajectory.tokens[len(PROMPT) :] == encode_text(WHOLE)
    assert made.logs() == {
        "prompt_length": len(PROMPT), "thinking_truncated": 0, "thinking_closed": 1,
        "thinking_length": len(encode_text(ANALYSIS + "777" + FINAL)), "answer_length": 3, "answer_truncated": 0,
    }  # fmt: skip


@pytest.mark.parametrize("end", STOP_TOKENS)
def test_an_end_of_sequence_inside_the_thinking_ends_the_sample_and_one_token_after_the_budget_it_is_ignored(end):
    response = ANALYSIS + "777" + end
    forced, made, _ = cut_thought(response, len(encode_text(response)))
    logs = made.logs()
    assert forced == "" and made.trajectory.tokens[len(PROMPT) :] == encode_text(response)
    assert logs["thinking_truncated"] == logs["thinking_closed"] == logs["answer_truncated"] == 0
    assert math.isnan(logs["answer_length"]) and logs["thinking_length"] == len(encode_text(response))
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
    with pytest.raises(ValueError, match="answer"):
        cut_thought(WHOLE, 5, prompt=encode_text("7" * (CONTEXT - len(PROMPT) - SIZE - 1)) + PROMPT)


def test_the_second_call_draws_from_another_stream():
    _, _, engine = cut_thought(WHOLE, 4)
    (_, first), (_, second) = engine.calls
    assert first.seed == 7 and second.seed == answer_seed(7)
    assert not {answer_seed(seed) for seed in range(64)} & set(range(64)), "those of the prompt's other samples"
    assert len({answer_seed(seed) for seed in range(64)}) == 64
    assert (first.min_tokens, second.min_tokens) == (1, 0) and first.output_kind is RequestOutputKind.DELTA


# In training: the executor, with its reward, its logs, and its settings, beside the single-turn executor


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


REWARD = """
calls = []
def reward_func(queries, prompts, labels):
    calls.append((queries, prompts, labels))
    return {"rewards": 0.5, "scores": 1.0, "extra_logs": {"correct": 1.0}}
"""


@pytest.fixture
def reward(tmp_path):
    file = tmp_path / "reward.py"
    file.write_text(REWARD)
    return str(file)


@dataclass
class Actor:
    """OpenRLHF's engine actor: `llm` for us, `generate` for the single-turn executor."""

    llm: Engine

    async def generate(self, prompt, params):
        tokens, reason = self.llm.make_whole_output(0, params.max_tokens)
        part = CompletionOutput(0, "", tokens, None, [{token: make_log_prob(token)} for token in tokens], reason)
        return RequestOutput("", None, prompt, None, [part], True)


def make_executor(reward: str, thinking: int, answer: int = 20) -> AgentExecutor:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(thinking, answer, "harmony", reward).items():
            patch.setenv(name, value)
        return AgentExecutor()


def execute_prompt(one, tokenizer, streams, prompt=PROMPT, **params):
    asked = SamplingParams(**{"max_tokens": 32, "min_tokens": 1, "seed": 7, "logprobs": 0, **params})
    engine = Actor(Engine([encode_text(stream) for stream in streams]))
    text = tokenizer.decode(prompt)
    return asyncio.run(one.execute(text, "7", asked, CONTEXT, tokenizer, engine)), engine.llm


@pytest.mark.parametrize("response", [WHOLE, ANALYSIS + "777<|return|>", "8<|call|>"])
@pytest.mark.parametrize("prompt", [PROMPT, encode_text("7" * 60) + PROMPT])
def test_a_budget_that_is_not_hit_is_the_single_turn_executor(tokenizer, reward, response, prompt):
    ours, theirs = make_executor(reward, 14, 12), SingleTurnAgentExecutor(reward)
    output, _ = execute_prompt(ours, tokenizer, [response], prompt)
    expected, _ = execute_prompt(theirs, tokenizer, [response], prompt)
    logs, account = output.pop("extra_logs"), output.pop("engine")
    assert account["tokens"] == output["observation_tokens"] and account["ranges"] == output["action_ranges"]
    assert logs.items() >= expected.pop("extra_logs").items()
    assert output == expected
    assert ours.reward_func.__globals__["calls"] == theirs.reward_func.__globals__["calls"] != []


def test_a_budget_that_is_hit_is_rewarded_with_its_delimiter(tokenizer, reward):
    ours = make_executor(reward, 4)
    output, engine = execute_prompt(ours, tokenizer, [WHOLE, "9<|return|>"])
    response = ANALYSIS + "7" + FINAL + "9<|return|>"
    [(queries, _, labels)] = ours.reward_func.__globals__["calls"]
    assert queries == [tokenizer.decode(PROMPT) + response] and labels == ["7"] and len(engine.calls) == 2
    assert output["observation_tokens"] == PROMPT + encode_text(response)
    first, second = output["action_ranges"]
    assert first == (len(PROMPT), len(PROMPT) + 4) and second == (len(PROMPT) + 4 + SIZE, len(PROMPT) + 6 + SIZE)
    assert output["reward"] == 0.5 and output["truncated"] is False
    # The tokens that the engine reports; the trainer compares its sample with them.
    log_probs = [value for start, end in (first, second) for value in output["rollout_log_probs"][start:end]]
    assert output["engine"] == {
        "tokens": output["observation_tokens"], "ranges": output["action_ranges"], "log_probs": log_probs,
    }  # fmt: skip
    assert output["engine"]["tokens"] is not output["observation_tokens"]
    assert output["extra_logs"]["correct"] == 1.0 and output["extra_logs"]["thinking_truncated"] == 1.0
