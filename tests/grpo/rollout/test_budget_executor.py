"""Rollouts with a thinking budget, on an engine that can be cut at every token and rejects invalid requests.

Sampled tokens, forced tokens and calls do not depend on a model: the engine replays token streams.
"""

import argparse
import asyncio
import math
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openrlhf.trainer.ray.vllm_engine import _load_agent_executor
from openrlhf.utils.agent import SingleTurnAgentExecutor
from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind

from grpo.rollout.budget_executor import AgentExecutor
from grpo.rollout.budgeted_rollout import answer_seed, budgeted_response
from grpo.rollout.thinking import Budget, delimiter
from grpo.rollout.thinking_settings import ThinkingSettings, environment, hand_on
from grpo.rollout.trajectory import Origin
from grpo.stack.cluster import runtime_env
from scripts.tiny_model.tokenizer import STOP_TOKENS, write_tokenizer
from tests.grpo.rollout.replayed_engine import CONTEXT, STOPS, TOKENIZER, Engine, ids, log_prob

HARMONY = delimiter("harmony", ids)
SIZE = len(HARMONY.tokens)
PROMPT = ids("<|start|>user<|message|>2+2<|end|><|start|>assistant")
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"


def rolled(streams, thinking, answer, prompt=PROMPT, seed=0, cached=0, max_length=CONTEXT, **params):
    engine = Engine([list(stream) for stream in streams], random.Random(seed), cached)
    asked = SamplingParams(**{"max_tokens": CONTEXT, "min_tokens": 1, "seed": 7, "logprobs": 0, **params})
    budget = Budget(thinking, answer)
    made = asyncio.run(budgeted_response(engine, prompt, asked, HARMONY, budget, max_length))
    return made, engine


def of_origin(made, origin) -> list[int]:
    pairs = zip(made.trajectory.tokens, made.trajectory.origins, strict=True)
    return [token for token, one in pairs if one is origin]


WORDS = [*ids(ANALYSIS), *HARMONY.tokens, *ids("<|channel|>commentary"), *ids("7 so"), *STOPS]
STREAM = st.lists(st.sampled_from(WORDS), min_size=1, max_size=24) | st.tuples(
    st.integers(0, 12), st.integers(0, 12), st.sampled_from(["", "<|return|>", "<|call|>"])
).map(lambda sizes: ids(ANALYSIS + "7" * sizes[0] + FINAL + "8" * sizes[1] + sizes[2]))
PROMPTS = st.sampled_from([PROMPT, PROMPT[:1], ids("7" * 40) + PROMPT, PROMPT + ids(ANALYSIS), PROMPT + ids(FINAL)[3:]])


@settings(max_examples=400, deadline=None)
@given(STREAM, STREAM, st.integers(0, 40), st.integers(2, 40), PROMPTS, st.integers(0, 9), st.integers(11, 70))
def test_no_stream_goes_beyond_a_budget(first, second, thinking, answer, prompt, seed, most):
    room = min(CONTEXT - len(prompt), most)
    made, engine = rolled([first, second], thinking, answer, prompt, seed, max_tokens=most)
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
    assert not any(token in STOPS for token in of_origin(made, Origin.SAMPLED)[:-1])


@settings(max_examples=300, deadline=None)
@given(STREAM, st.integers(0, 40), st.integers(2, 40), PROMPTS, st.integers(0, 9))
def test_a_budget_that_is_not_hit_changes_no_token(first, thinking, answer, prompt, seed):
    made, engine = rolled([first, [5]], thinking, answer, prompt, seed)
    alone, reason = engine.whole(0, CONTEXT - len(prompt))
    if made.logs()["thinking_truncated"]:
        assert of_origin(made, Origin.SAMPLED)[: made.thought] == alone[: made.thought]
        return
    [(_, params)] = engine.calls
    response = made.trajectory.tokens[len(prompt) :]
    assert params.seed == 7 and params.prompt_logprobs is None
    assert response == alone[: len(response)]
    assert (response == alone and reason == "stop") or made.is_truncated
    assert made.trajectory.log_probs[len(prompt) :] == [log_prob(token).logprob for token in response]


def cut(response: str, thinking: int, answer: int = 4, second: str = "8<|return|>", **more):
    """Return the text of the forced tokens, and the rollout, of a response under a budget."""
    made, engine = rolled([ids(response), ids(second)], thinking, answer, **more)
    return TOKENIZER.decode(of_origin(made, Origin.FORCED), skip_special_tokens=False), made, engine


WHOLE = ANALYSIS + "777" + FINAL + "88<|return|>"


@pytest.mark.parametrize("thinking", range(1, len(ids(ANALYSIS + "777" + FINAL))))
def test_cut_thought_gets_the_missing_part_of_the_delimiter(thinking):
    forced, made, engine = cut(WHOLE, thinking)
    response = TOKENIZER.decode(made.trajectory.tokens[len(PROMPT) :], skip_special_tokens=False)
    assert forced and response.endswith(forced + "8<|return|>")
    assert response.count("final<|message|>") == 1 and response.count("<|end|>") <= 1
    assert made.thought == thinking and not made.is_truncated and made.is_closed
    assert len(engine.calls) == 2 and engine.aborted == 1


@pytest.mark.parametrize("thinking", range(len(ids(ANALYSIS + "777" + FINAL)), 25))
def test_thought_that_ends_in_time_is_unchanged(thinking):
    forced, made, engine = cut(WHOLE, thinking)
    assert forced == "" and len(engine.calls) == 1 and engine.aborted == 0
    assert made.trajectory.tokens[len(PROMPT) :] == ids(WHOLE)
    assert made.logs() == pytest.approx(
        {
            "prompt_length": len(PROMPT), "thinking_truncated": 0, "thinking_closed": 1,
            "thinking_length": len(ids(ANALYSIS + "777" + FINAL)), "answer_length": 3, "answer_truncated": 0,
            "delimiter_log_prob": math.nan,
        },
        nan_ok=True,
    )  # fmt: skip


@pytest.mark.parametrize("end", STOP_TOKENS)
@pytest.mark.parametrize("slack", [0, 1, 9])
def test_an_end_of_sequence_inside_the_thinking_ends_the_sample(end, slack):
    response = ANALYSIS + "777" + end
    forced, made, engine = cut(response, len(ids(response)) + slack)
    assert forced == "" and len(engine.calls) == 1 and made.trajectory.tokens[len(PROMPT) :] == ids(response)
    logs = made.logs()
    assert logs["thinking_truncated"] == logs["thinking_closed"] == logs["answer_truncated"] == 0
    assert math.isnan(logs["answer_length"]) and logs["thinking_length"] == len(ids(response))


def test_an_end_of_sequence_one_token_after_the_budget_is_ignored():
    response = ANALYSIS + "777<|return|>"
    for seed in range(9):  # in the same output as the last token, and in the next one
        forced, made, _ = cut(response, len(ids(response)) - 1, seed=seed)
        assert forced == FINAL and made.logs()["answer_length"] == 2
        assert of_origin(made, Origin.SAMPLED) == ids(ANALYSIS + "777") + ids("8<|return|>")


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary<|message|>",
        "<|channel|>commentary to=f<|message|>",
        "<|channel|>analysis to=f<|message|>",
    ],
)
def test_commentary_and_calls_of_tools_are_natural_ends(header):
    response = ANALYSIS + "7<|end|><|start|>assistant" + header
    forced, made, engine = cut(response + "888<|call|>", len(ids(response)))
    assert forced == "" and len(engine.calls) == 1 and made.logs()["thinking_closed"] == 1
    assert made.logs()["answer_length"] == 4 and not made.is_truncated


def test_without_a_thinking_budget_the_answer_begins_at_once():
    forced, made, engine = cut("8<|return|>", 0)
    [(prompt, params)] = engine.calls
    assert forced == "<|channel|>final<|message|>" and prompt == PROMPT + ids(forced)
    assert params.max_tokens == 4 and made.thought == 0


def test_a_prompt_that_begins_the_answer_is_one_call_of_the_answers_budget():
    prompt = PROMPT + ids(FINAL)[3:]
    forced, made, engine = cut("8<|return|>", 9, prompt=prompt)
    [(_, params)] = engine.calls
    assert forced == "" and params.max_tokens == 4 and params.seed == 7 and made.thought == 0
    assert made.logs()["answer_length"] == 2 and made.logs()["thinking_closed"] == 1


@pytest.mark.parametrize("thinking", [20, CONTEXT, 10**9])
def test_budget_above_the_context_keeps_room_for_the_answer(thinking):
    forced, made, engine = cut(ANALYSIS + "7", thinking, second="8")
    assert forced == FINAL and made.is_truncated and made.logs()["answer_length"] == 4
    assert made.thought == min(thinking, CONTEXT - len(PROMPT) - SIZE - 4)
    assert [params.max_tokens for _, params in engine.calls] == [made.thought + 4, 4]


def test_a_prompt_that_leaves_little_room_shortens_the_thinking_and_then_the_answer():
    lengths = []
    for room in range(SIZE + 2, SIZE + 12):
        prompt = ids("7" * (CONTEXT - len(PROMPT) - room)) + PROMPT
        _, made, engine = cut(ANALYSIS + "7", 5, answer=4, second="8", prompt=prompt)
        lengths.append((made.thought, int(made.logs()["answer_length"])))
        assert len(made.trajectory.tokens) <= CONTEXT and len(engine.calls) == 1 + (made.thought > 0)
    # Without thinking, the delimiter is shorter: it begins in the prompt.
    assert lengths == [(0, 2), (0, 3), (0, 4), (1, 4), (2, 3), (3, 4), (4, 4), (5, 4), (5, 4), (5, 4)]
    with pytest.raises(ValueError, match="shorten the prompt"):
        cut(WHOLE, 5, prompt=ids("7" * (CONTEXT - len(PROMPT) - SIZE - 1)) + PROMPT)


def test_the_second_call_draws_from_another_stream():
    _, _, engine = cut(WHOLE, 4)
    (_, first), (_, second) = engine.calls
    assert first.seed == 7 and second.seed == answer_seed(7)
    assert not {answer_seed(seed) for seed in range(64)} & set(range(64)), "those of the prompt's other samples"
    assert len({answer_seed(seed) for seed in range(64)}) == 64
    assert (first.min_tokens, second.min_tokens) == (1, 0) and first.output_kind is RequestOutputKind.DELTA


@pytest.mark.parametrize(
    "cached, is_known", [(0, True), (len(PROMPT) + 4, True), (len(PROMPT) + 5, False), (99, False)]
)
def test_forced_tokens_have_a_log_prob_unless_cached(cached, is_known):
    forced, made, _ = cut(ANALYSIS + "77", 5, cached=cached)
    assert len(ids(ANALYSIS + "77")) == 5 and forced == FINAL
    if is_known:
        assert made.delimiter_log_prob == pytest.approx(sum(log_prob(token).logprob for token in ids(FINAL)))
    else:
        assert math.isnan(made.delimiter_log_prob)
    assert not any(of_origin_log_probs(made, Origin.FORCED)), "none is trained on"


def of_origin_log_probs(made, origin) -> list[float]:
    pairs = zip(made.trajectory.log_probs, made.trajectory.origins, strict=True)
    return [value for value, one in pairs if one is origin]


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
        tokens, reason = self.llm.whole(0, params.max_tokens)
        part = CompletionOutput(0, "", tokens, None, [{token: log_prob(token)} for token in tokens], reason)
        return RequestOutput("", None, prompt, None, [part], True)


def executor(reward: str, thinking: int, answer: int = 20) -> AgentExecutor:
    return AgentExecutor(environment(thinking, answer, "harmony", reward))


def executed(one, tokenizer, streams, prompt=PROMPT, **params):
    asked = SamplingParams(**{"max_tokens": 32, "min_tokens": 1, "seed": 7, "logprobs": 0, **params})
    engine = Actor(Engine([ids(stream) for stream in streams]))
    text = tokenizer.decode(prompt)
    return asyncio.run(one.execute(text, "7", asked, CONTEXT, tokenizer, engine)), engine.llm


@pytest.mark.parametrize("response", [WHOLE, ANALYSIS + "777<|return|>", "8<|call|>"])
@pytest.mark.parametrize("prompt", [PROMPT, ids("7" * 60) + PROMPT])
def test_a_budget_that_is_not_hit_is_the_single_turn_executor(tokenizer, reward, response, prompt):
    ours, theirs = executor(reward, 14, 12), SingleTurnAgentExecutor(reward)
    output, _ = executed(ours, tokenizer, [response], prompt)
    expected, _ = executed(theirs, tokenizer, [response], prompt)
    logs, account = output.pop("extra_logs"), output.pop("engine")
    assert account["tokens"] == output["observation_tokens"] and account["ranges"] == output["action_ranges"]
    assert logs.items() >= expected.pop("extra_logs").items()
    assert output == expected
    assert ours.reward_func.__globals__["calls"] == theirs.reward_func.__globals__["calls"] != []


def test_a_budget_that_is_hit_is_rewarded_with_its_delimiter(tokenizer, reward):
    ours = executor(reward, 4)
    output, engine = executed(ours, tokenizer, [WHOLE, "9<|return|>"])
    response = ANALYSIS + "7" + FINAL + "9<|return|>"
    [(queries, _, labels)] = ours.reward_func.__globals__["calls"]
    assert queries == [tokenizer.decode(PROMPT) + response] and labels == ["7"] and len(engine.calls) == 2
    assert output["observation_tokens"] == PROMPT + ids(response)
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


def test_logs_have_the_same_keys_and_log_probs_only_on_request(tokenizer, reward):
    streams = [(WHOLE,), (ANALYSIS + "7<|return|>",), (ANALYSIS + "7", "8")]
    outputs = [executed(executor(reward, 20, 4), tokenizer, some, logprobs=None)[0] for some in streams]
    assert len({tuple(output["extra_logs"]) for output in outputs}) == 1
    assert [output["rollout_log_probs"] for output in outputs] == [None] * 3


def test_the_flags_reach_the_engines(monkeypatch, reward):
    for name in environment(0, 2, "", ""):
        monkeypatch.setenv(name, "")
    args = argparse.Namespace(
        thinking_budget=12, answer_budget=5, thinking_delimiter="harmony", remote_rm_url=reward, agent_func_path=None
    )
    hand_on(args)
    variables = runtime_env()["env_vars"]
    assert ThinkingSettings.from_environment(variables) == ThinkingSettings(Budget(12, 5), "harmony", reward)
    loaded = _load_agent_executor(args.agent_func_path)
    assert loaded.reward_func is not None and loaded.settings.budget == Budget(12, 5)


def test_an_executor_without_settings_says_how_it_is_chosen():
    with pytest.raises(ValueError, match="--thinking_budget"):
        AgentExecutor({})
