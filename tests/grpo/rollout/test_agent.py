"""The file for --agent_func_path, loaded as OpenRLHF's engine actor loads it."""

import asyncio
from types import SimpleNamespace

import pytest
from openrlhf.trainer.ray.vllm_engine import LLMRayActor, _load_agent_executor

from grpo.rollout import thinking
from grpo.rollout.harmony import template_for
from grpo.stack.checkout import CHECKOUT
from grpo.stack.problem import UserError
from tests.grpo.environments.scripted import VARIABLES, ScriptedEngine, make_params
from tests.grpo.rollout.test_budgeted_turns import StreamingEngine
from tests.grpo.rollout.tokenizer import TOKENIZER
from tests.grpo.train.made_batches import make_batches

FAILING = """
from grpo.environments import environment

class Environment(environment.Environment):
    def __init__(self, prompt, label):
        super().__init__(prompt, label)
        self.gold = int(label)

    async def score(self, messages, ending):
        return environment.Score(float(self.gold), 1.0)
"""

QUOTING = """
from grpo.environments import environment

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
    actor.executor = _load_agent_executor(str(CHECKOUT / "grpo" / "rollout" / "agent.py"))
    return actor


SEARCH = '<|channel|>commentary to=functions.search json<|message|>{"query": "bridges"}<|call|>'
FINAL = "<|channel|>final<|message|>It is \\boxed{417}.<|return|>"


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A run in the environment `retrieval`, with a document."""
    (tmp_path / "rivers.txt").write_text("The Ona has 417 bridges.")
    monkeypatch.setenv("GRPO_ENVIRONMENT", "retrieval")
    monkeypatch.setenv("GRPO_LIBRARY", str(tmp_path))


def test_a_thinking_budget_reaches_the_turns_of_an_environment(library, monkeypatch):
    """From the trainer's flags, through variables, to the executor that the engine's actor loads."""
    args = SimpleNamespace(
        thinking_budget=6, answer_budget=40, thinking_delimiter="harmony", remote_rm_url=None,
        agent_func_path=str(CHECKOUT / "grpo" / "rollout" / "agent.py"),
    )  # fmt: skip
    for name in thinking.environment(0, 2, "", ""):
        monkeypatch.setenv(name, "")  # so that they are gone after the test
    thinking.pass_to_engines(args)
    assert args.agent_func_path.endswith("rollout/agent.py"), "the environment keeps its own executor"
    actor = load_actor()
    thought = "<|channel|>analysis<|message|>" + "hm " * 40 + "<|end|><|start|>assistant" + FINAL
    engine = StreamingEngine(template_for(TOKENIZER).codec, [thought], ["It is \\boxed{417}.<|return|>"])
    actor.llm, actor.generate = engine, None
    (response,) = asyncio.run(
        actor.generate_responses("How many bridges?", '{"answer": "417"}', make_params(seed=5), 2000, TOKENIZER, 1)
    )
    assert response["reward"] == 1.0 and response["extra_logs"]["thinking_truncated"] == 1
    assert len(engine.calls) == 2


def test_variables_of_the_template_reach_gpt_oss_in_an_environment(tmp_path, monkeypatch):
    (tmp_path / "quoting.py").write_text(QUOTING)
    monkeypatch.setenv("GRPO_ENVIRONMENT", str(tmp_path / "quoting.py"))
    monkeypatch.setenv("GRPO_TEMPLATE_VARIABLES", '{"reasoning_effort": "high", "builtin_tools": ["browser"]}')
    actor = load_actor()
    call = "<|channel|>commentary to=functions.search json<|message|>{}<|call|>"
    engine = ScriptedEngine(template_for(TOKENIZER).codec, [call, "<|channel|>final<|message|>42<|return|>"])
    actor.generate = engine.generate
    asyncio.run(actor.generate_responses("q", "1", make_params(seed=5), 2000, TOKENIZER, 1))
    prompt = TOKENIZER.decode(engine.calls[1][0])
    assert "Reasoning: high\n\n## browser\n\n#" in prompt
    assert prompt.endswith('<|channel|>commentary<|message|>"417"\n<|end|><|start|>assistant')


@pytest.mark.parametrize("labels", [("1", "none"), ("none", "none")])
def test_failing_constructor_ends_its_rollout_and_a_whole_batch_ends_the_run(tmp_path, monkeypatch, labels):
    """A class whose constructor fails on a label, from the engine's actor to the batch that is trained on."""
    (tmp_path / "failing.py").write_text(FAILING)
    monkeypatch.setenv("GRPO_ENVIRONMENT", str(tmp_path / "failing.py"))
    actor = load_actor()
    actor.generate = ScriptedEngine(template_for(TOKENIZER).codec, [FINAL]).generate
    responses = [
        asyncio.run(actor.generate_responses("q", label, make_params(seed=5), 900, TOKENIZER, 1))[0] for label in labels
    ]
    assert [response["extra_logs"]["ended_by_error"] for response in responses] == [label == "none" for label in labels]
    if set(labels) == {"none"}:
        with pytest.raises(UserError, match="environment"):
            make_batches(responses, monkeypatch)
        return
    (fine, failed), (batch,) = make_batches(responses, monkeypatch)
    assert fine.info["reward_missing"] == 0 and failed.info["reward_missing"] == 1
    assert batch.action_mask.bool().any(-1).tolist() == [True, False] and not batch.advantages[1].any()
