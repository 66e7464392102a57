"""The file for --agent_func_path, loaded as OpenRLHF's engine actor loads it."""

import asyncio
from types import SimpleNamespace

import pytest
from openrlhf.trainer.ray.vllm_engine import LLMRayActor, _load_agent_executor

from grpo.rollout import thinking_settings
from grpo.rollout.multi_turn.templates import template_for
from grpo.stack.checkout import CHECKOUT
from grpo.stack.problem import UserError
from tests.grpo.batch.made_experiences import make_experiences
from tests.grpo.rollout.multi_turn.dialects import TOKENIZERS
from tests.grpo.rollout.multi_turn.scripted import VARIABLES, ScriptedEngine, make_params
from tests.grpo.rollout.multi_turn.test_budgeted_turns import StreamingEngine

FAILING = """
from grpo.rollout.multi_turn import environment

class Environment(environment.Environment):
    def __init__(self, prompt, label):
        super().__init__(prompt, label)
        self.gold = int(label)

    async def score(self, messages, ending):
        return environment.Score(float(self.gold), 1.0)
"""

QUOTING = """
from grpo.rollout.multi_turn import environment

class Environment(environment.Environment):
    async def call(self, name, arguments):
        return '"417"\\n'

    async def score(self, messages, ending):
        return environment.Score(1.0, 1.0)
"""


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


def load_actor():
    """The actor's own class, without its engine, and with our executor as it loads it."""
    actor_class = LLMRayActor.__ray_metadata__.modified_class
    actor = actor_class.__new__(actor_class)
    actor.executor = _load_agent_executor(str(CHECKOUT / "grpo" / "rollout" / "multi_turn" / "agent.py"))
    return actor


def test_openrlhf_rolls_out_several_samples_of_a_prompt_in_an_environment(tmp_path, monkeypatch):
    (tmp_path / "rivers.txt").write_text("The Ona has 417 bridges.")
    monkeypatch.setenv("GRPO_ENVIRONMENT", "retrieval")
    monkeypatch.setenv("GRPO_LIBRARY", str(tmp_path))
    tokenizer = TOKENIZERS["qwen3"]
    search = '<tool_call>\n{"name": "search", "arguments": {"query": "bridges"}}\n</tool_call>'
    script = [f"{search}\n{search}<|im_end|>", "It is \\boxed{417}.<|im_end|>"]
    actor = load_actor()
    engines = [ScriptedEngine(template_for(tokenizer).codec, script, seed=seed) for seed in range(2)]
    turns = iter(engines)

    class Engine:
        """Two samples are two conversations; the seed selects the script of each."""

        by_seed: dict = {}  # noqa: RUF012

        async def generate(self, prompt, given):
            start = given.seed % 1_000_003
            if start not in self.by_seed:
                self.by_seed[start] = next(turns)
            return await self.by_seed[start].generate(prompt, given)

    actor.generate = Engine().generate
    responses = asyncio.run(
        actor.generate_responses("How many bridges?", '{"answer": "417"}', make_params(seed=5), 2000, tokenizer, 2)
    )
    for engine, response in zip(engines, responses, strict=True):
        assert response["prompt"] == "How many bridges?" and response["reward"] == response["scores"] == 1.0
        logs = response["extra_logs"]
        assert (logs["turns"], logs["tool_calls"], logs["tool_errors"], logs["token_mismatch"]) == (2, 2, 0, 0)
        (_, first), (prompt, second) = engine.calls
        assert response["observation_tokens"] == prompt + second and not response["truncated"]
        sampled = [response["observation_tokens"][start:end] for start, end in response["action_ranges"]]
        assert sampled == [first, second]
        assert tokenizer.decode(prompt).count("[1] rivers: The Ona has 417 bridges.") == 2


def test_a_thinking_budget_reaches_the_turns_of_an_environment(tmp_path, monkeypatch):
    """From the trainer's flags, through variables, to the executor that the engine's actor loads."""
    args = SimpleNamespace(
        thinking_budget=6, answer_budget=40, thinking_delimiter="think", remote_rm_url=None,
        agent_func_path=str(CHECKOUT / "grpo" / "rollout" / "multi_turn" / "agent.py"),
    )  # fmt: skip
    for name in thinking_settings.environment(0, 2, "", ""):
        monkeypatch.setenv(name, "")  # so that they are gone after the test
    thinking_settings.pass_to_engines(args)
    assert args.agent_func_path.endswith("multi_turn/agent.py"), "the environment keeps its own executor"
    (tmp_path / "rivers.txt").write_text("The Ona has 417 bridges.")
    monkeypatch.setenv("GRPO_ENVIRONMENT", "retrieval")
    monkeypatch.setenv("GRPO_LIBRARY", str(tmp_path))
    tokenizer, actor = TOKENIZERS["qwen3"], load_actor()
    thought = "<think>\n" + "hm " * 40 + "\n</think>\n\nIt is 417.<|im_end|>"
    engine = StreamingEngine(template_for(tokenizer).codec, [thought], ["It is \\boxed{417}.<|im_end|>"])
    actor.llm, actor.generate = engine, None
    (response,) = asyncio.run(
        actor.generate_responses("How many bridges?", '{"answer": "417"}', make_params(seed=5), 2000, tokenizer, 1)
    )
    assert response["reward"] == 1.0 and response["extra_logs"]["thinking_truncated"] == 1
    assert response["extra_logs"]["thinking_length"] == 6 and len(engine.calls) == 2


@pytest.mark.parametrize(("template", "result"), [("served", '"417"\n'), ("hub", '"\\"417\\"\\n"')])
def test_settings_of_the_template_reach_gpt_oss_in_an_environment(tmp_path, monkeypatch, template, result):
    (tmp_path / "quoting.py").write_text(QUOTING)
    monkeypatch.setenv("GRPO_ENVIRONMENT", str(tmp_path / "quoting.py"))
    monkeypatch.setenv("GRPO_TEMPLATE", template)
    monkeypatch.setenv("GRPO_TEMPLATE_VARIABLES", '{"reasoning_effort": "high", "builtin_tools": ["browser"]}')
    tokenizer, actor = TOKENIZERS["harmony"], load_actor()
    call = "<|channel|>commentary to=functions.search json<|message|>{}<|call|>"
    engine = ScriptedEngine(template_for(tokenizer).codec, [call, "<|channel|>final<|message|>42<|return|>"])
    actor.generate = engine.generate
    asyncio.run(actor.generate_responses("q", "1", make_params(seed=5), 2000, tokenizer, 1))
    prompt = tokenizer.decode(engine.calls[1][0])
    assert "Reasoning: high\n\n## browser\n\n#" in prompt
    assert prompt.endswith(f"<|channel|>commentary<|message|>{result}<|end|><|start|>assistant")


@pytest.mark.parametrize("labels", [("1", "none"), ("none", "none")])
def test_failing_constructor_ends_its_rollout_and_a_whole_batch_ends_the_run(tmp_path, monkeypatch, labels):
    """A class whose constructor fails on a label, from the engine's actor to the batch that is trained on."""
    (tmp_path / "failing.py").write_text(FAILING)
    monkeypatch.setenv("GRPO_ENVIRONMENT", str(tmp_path / "failing.py"))
    tokenizer, actor = TOKENIZERS["qwen3"], load_actor()
    actor.generate = ScriptedEngine(template_for(tokenizer).codec, ["42<|im_end|>"]).generate
    responses = [
        asyncio.run(actor.generate_responses("q", label, make_params(seed=5), 900, tokenizer, 1))[0] for label in labels
    ]
    assert [response["extra_logs"]["ended_by_error"] for response in responses] == [label == "none" for label in labels]
    if set(labels) == {"none"}:
        with pytest.raises(UserError, match="environment gave none of 2 rollouts a reward"):
            make_experiences(responses, monkeypatch)
        return
    (fine, failed), (batch,) = make_experiences(responses, monkeypatch)
    assert fine.info["reward_missing"] == 0 and failed.info["reward_missing"] == 1
    assert batch.action_mask.bool().any(-1).tolist() == [True, False] and not batch.advantages[1].any()
