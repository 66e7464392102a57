"""The executor of a thinking budget: its reward, its logs and its settings, beside the single-turn executor."""

import argparse
import asyncio
from dataclasses import dataclass

import pytest
from openrlhf.trainer.ray.vllm_engine import _load_agent_executor
from openrlhf.utils.agent import SingleTurnAgentExecutor
from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.outputs import CompletionOutput, RequestOutput

from grpo.rollout.budget_executor import AgentExecutor
from grpo.rollout.thinking import Budget, ThinkingSettings, environment, pass_to_engines, read_settings
from grpo.stack.cluster import runtime_env
from scripts.tiny_model.tokenizer import write_tokenizer
from tests.grpo.rollout.replayed_engine import (
    ANALYSIS,
    CONTEXT,
    FINAL,
    HARMONY,
    PROMPT,
    WHOLE,
    Engine,
    encode_text,
    make_log_prob,
)

SIZE = len(HARMONY.tokens)


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


def test_logs_have_the_same_keys_and_log_probs_only_on_request(tokenizer, reward):
    streams = [(WHOLE,), (ANALYSIS + "7<|return|>",), (ANALYSIS + "7", "8")]
    outputs = [execute_prompt(make_executor(reward, 20, 4), tokenizer, some, logprobs=None)[0] for some in streams]
    assert len({tuple(output["extra_logs"]) for output in outputs}) == 1
    assert [output["rollout_log_probs"] for output in outputs] == [None] * 3


def test_the_flags_reach_the_engines(monkeypatch, reward):
    for name in environment(0, 2, "", ""):
        monkeypatch.setenv(name, "")
    args = argparse.Namespace(
        thinking_budget=12, answer_budget=5, thinking_delimiter="harmony", remote_rm_url=reward, agent_func_path=None
    )
    pass_to_engines(args)
    variables = runtime_env()["env_vars"]
    assert read_settings(variables) == ThinkingSettings(Budget(12, 5), "harmony", reward)
    loaded = _load_agent_executor(args.agent_func_path)
    assert loaded.reward_func is not None and loaded.settings.budget == Budget(12, 5)
