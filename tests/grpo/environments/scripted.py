"""Stand-ins: OpenRLHF's engine actor, in tokens that a tokenizer would not choose; a policy; an environment."""

import asyncio
import json
import random
from dataclasses import replace
from types import SimpleNamespace

from grpo.environments.conversation import hold_conversation
from grpo.environments.environment import Environment, Score, Tool, ToolError
from grpo.environments.settings import RolloutLimits
from grpo.rollout.harmony import template_for
from grpo.rollout.multi_turn import EnginePolicy, roll_out
from tests.grpo.rollout.tokenizer import TOKENIZER

LIMITS = RolloutLimits(turns=8, seconds=300, tool_seconds=20, score_seconds=60)
VARIABLES = {
    "GRPO_TURN_LIMIT": "4",
    "GRPO_ROLLOUT_SECONDS": "60",
    "GRPO_TOOL_SECONDS": "20",
    "GRPO_SCORE_SECONDS": "60",
    "GRPO_MAX_BRANCHES": "3",
}


def encode_oddly(codec, text, seed=0):
    """Encode text in pieces of random lengths: a policy may sample any tokens that give its text."""
    random_ = random.Random(f"{seed} {text}")
    tokens = []
    for rest, special in codec.split(text):
        if special is not None:
            tokens.append(special)
            continue
        while rest:
            size = random_.randint(1, 4)
            tokens += codec.encode_text(rest[:size])
            rest = rest[size:]
    return tokens


class ScriptedEngine:
    """Has `generate`, like OpenRLHF's LLMRayActor. Each sampled token gets a distinct log-prob.

    Args:
        script: the text of each turn, with its end token; further turns repeat the last one.
        change: called with the prompt, returns the prompt that the engine uses.
    """

    def __init__(self, codec, script, change=lambda prompt: prompt, log_probs=True, seconds=0.0, seed=0):
        self.codec, self.script, self.change, self.log_probs = codec, script, change, log_probs
        self.seconds, self.seed = seconds, seed
        self.calls, self.params = [], []

    async def generate(self, prompt, params):
        await asyncio.sleep(self.seconds)
        given = self.change(list(prompt))
        text = self.script[min(len(self.calls), len(self.script) - 1)]
        tokens = encode_oddly(self.codec, text, self.seed)[: params.max_tokens]
        is_cut = not tokens or tokens[-1] not in params.stop_token_ids
        choices = [{token: SimpleNamespace(logprob=self.log_prob(i))} for i, token in enumerate(tokens)]
        self.calls.append((given, tokens))
        self.params.append(params)
        sampled = SimpleNamespace(
            token_ids=tokens, logprobs=choices if self.log_probs else None, finish_reason="length" if is_cut else "stop"
        )
        return SimpleNamespace(prompt_token_ids=given, outputs=[sampled])

    def log_prob(self, index):
        return -(1 + len(self.calls) + index / 1000)


def make_params(max_tokens=200, seed=1):
    from vllm import SamplingParams

    return SamplingParams(temperature=1.0, max_tokens=max_tokens, min_tokens=1, seed=seed)


def make_call(name, arguments, id="1"):
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": written}}


class Spoken:
    """A policy of messages that are given, each of ten tokens."""

    tokens = 0

    def __init__(self, *messages, seconds=0.0):
        self.messages, self.seconds = list(messages), seconds

    async def respond(self, messages, tools):
        await asyncio.sleep(self.seconds)
        said = self.messages.pop(0) if len(self.messages) > 1 else self.messages[0]
        self.tokens += 10
        return {"role": "assistant", "content": "", **said}, False


def talk(policy, environment, **limits):
    return asyncio.run(hold_conversation(environment, policy, replace(LIMITS, **limits)))


class Library(Environment):
    """Answers any search; says `replies` to answers, one after the other."""

    tools = (Tool("search", "look it up", {"type": "object", "properties": {"query": {"type": "string"}}}),)
    replies: tuple[str, ...] = ()

    def __init__(self, prompt="where?", label="", replies=(), prefix="there"):
        super().__init__(prompt, label)
        self.replies, self.prefix = list(replies), prefix

    async def call(self, name, arguments):
        if name != "search":
            raise ToolError(f"there is no tool {name}")
        return f"{self.prefix} {arguments.get('query')}"

    async def reply(self, messages):
        return [{"role": "user", "content": self.replies.pop(0)}] if self.replies else None

    async def score(self, messages, ending):
        return Score(1.0, 1.0, {"correct": 1.0})


def roll_out_script(script, environment=None, max_rows=99, max_length=4000, **engine):
    """Play a script in an environment; return the policy, its engine, the outcome, and the trainer's response."""
    template = template_for(TOKENIZER)
    engine = ScriptedEngine(template.codec, script, **engine)
    policy = EnginePolicy(template, engine, make_params(), max_length)
    outcome, response = asyncio.run(roll_out(lambda: environment or Library(), policy, LIMITS, max_rows))
    return policy, engine, outcome, response


def assert_exact(policy, engine):
    """The tokens and log-probs of every call are in exactly one sample; nothing else is trained."""
    trained = []
    for sample in policy.history.rows:
        for start, end in sample.action_ranges():
            trained.append((sample.tokens[:start], sample.tokens[start:end], sample.log_probs[start:end]))
    assert [(prompt, tokens) for prompt, tokens, _ in trained] == engine.calls
    for number, (_, tokens, log_probs) in enumerate(trained):
        assert log_probs == [-(1 + number + index / 1000) for index in range(len(tokens))]
