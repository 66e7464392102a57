"""What an environment returns: anything but messages, text and numbers costs its own rollout."""

import asyncio
import math

import numpy
import pytest
import torch

from grpo.rollout.multi_turn.conversation import is_message, play, score_conversation
from grpo.rollout.multi_turn.environment import Score, Tool, ToolError
from grpo.rollout.multi_turn.rollout import EnginePolicy, roll_out
from grpo.rollout.multi_turn.templates import template_for
from tests.grpo.rollout.multi_turn.dialects import TOKENIZERS
from tests.grpo.rollout.multi_turn.scripted import LIMITS, Library, ScriptedEngine, Spoken, make_call, make_params, talk


def test_unrenderable_message_ends_its_rollout_but_not_the_run(caplog):
    class Odd(Library):
        async def reply(self, messages):
            return [{"role": "oracle", "content": "x"}]

    template = template_for(TOKENIZERS["qwen3"])
    policy = EnginePolicy(template, ScriptedEngine(template.codec, ["42<|im_end|>"]), make_params(), 900)
    outcome, response = asyncio.run(roll_out(Odd, policy, LIMITS, 4))
    assert outcome.ending == "error" and outcome.turns == 1 and response["reward"] != response["reward"]
    assert "oracle" in caplog.text


@pytest.mark.parametrize("said", [None, []])
def test_a_conversation_without_a_first_message_has_no_reward(said):
    class Silent(Library):
        async def start(self):
            return said

    template = template_for(TOKENIZERS["plain"])
    engine = ScriptedEngine(template.codec, ["42" + template.stops[0]])
    outcome, response = asyncio.run(roll_out(Silent, EnginePolicy(template, engine, make_params(), 900), LIMITS, 4))
    assert outcome.ending == "error" and "start" in outcome.fault and not engine.calls
    assert response["reward"] != response["reward"]


@pytest.mark.parametrize("answer", [None, 7, ["there"], {"role": "tool", "content": "there"}])
def test_a_tool_that_returns_no_text_is_an_observation_that_says_so(answer, caplog):
    class Odd(Library):
        async def call(self, name, arguments):
            return answer

    outcome = talk(Spoken({"tool_calls": [make_call("search", {})]}, {"content": "ok"}), Odd())
    heard = f"search returned {type(answer).__name__} instead of text"
    assert outcome.messages[2]["content"] == f"error: {heard}" and heard in caplog.text
    assert (outcome.ending, outcome.calls, outcome.errors) == ("done", 1, 1)


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_lone_surrogate_from_a_tool_is_a_tool_error(text, fails):
    class Echo(Library):
        async def call(self, name, arguments):
            if fails:
                raise ToolError(text)
            return text

    said = Spoken({"tool_calls": [make_call("search", {"query": "x"})]}, {"content": "ok"})
    outcome, score = asyncio.run(play(Echo, said, LIMITS))
    assert (outcome.ending, outcome.errors, score.reward) == ("done", 1, 1.0)
    assert "error: " in outcome.messages[2]["content"] and is_message(outcome.messages[2])
    if not fails:
        assert "search returned text that is not valid Unicode" in outcome.messages[2]["content"]


def play_in_training(environment):
    template = template_for(TOKENIZERS["qwen3"])
    policy = EnginePolicy(template, ScriptedEngine(template.codec, ["ok<|im_end|>"]), make_params(), 4000)
    outcome, response = asyncio.run(roll_out(lambda: environment, policy, LIMITS, 4))
    return outcome, response["reward"]


class Unshown:
    def __repr__(self):
        raise KeyError("what it has")


class Torn(dict):
    """A message whose contents cannot be read."""

    def items(self):
        raise ConnectionError("the store is gone")


NO_MESSAGES = [Unshown(), Torn(role="user", content="x"), None, "hello", {}, {"content": "hello"}, {"role": None},
               {"role": "user", "content": {1, 2}},
               {"role": "user", "content": "\ud800"}, {"role": "user", "content": "x", "number": math.nan}]  # fmt: skip


@pytest.mark.parametrize("method", ["start", "reply", "in place"])
@pytest.mark.parametrize("item", NO_MESSAGES)
def test_an_invalid_message_is_an_error_of_the_environment(method, item):
    class Odd(Library):
        async def start(self):
            return [item] if method == "start" else await super().start()

        async def reply(self, messages):
            if method == "in place":
                messages.insert(0, item)
            return [item] if method == "reply" else []

    outcome, reward = play_in_training(Odd())
    assert outcome.ending == "error" and reward != reward
    assert ("messages" if method == "in place" else method) in outcome.fault and "message" in outcome.fault


def test_tool_calls_of_the_environments_own_messages_are_those_of_the_protocol():
    function = {"name": "search", "arguments": "{}"}

    class Example(Library):
        tool_calls = None

        async def start(self):
            shown = {"role": "assistant", "content": "ok", "tool_calls": self.tool_calls}
            return [*await super().start(), shown, *await super().start()]

    for calls in (None, [], [{"id": "1", "type": "function", "function": function}]):
        Example.tool_calls = calls
        assert play_in_training(Example()) == (play_in_training(Example())[0], 1.0), calls
    for calls in ("search", [None], [{"function": function}], [{"id": "1", "type": "function", "function": {}}]):
        Example.tool_calls = calls
        outcome, reward = play_in_training(Example())
        assert outcome.ending == "error" and "start" in outcome.fault and reward != reward


@pytest.mark.parametrize(
    "tools", [(Tool("search", "look it up", {"type": object}),), ["search"], property(lambda self: 1 / 0)]
)
def test_tools_that_no_protocol_supports_are_an_environment_error(tools):
    outcome, reward = play_in_training(type("Odd", (Library,), {"tools": tools})())
    assert outcome.ending == "error" and "tools" in outcome.fault and reward != reward


NO_SCORES = [(None, 0.0), ("1", 0.0), ([1.0], 0.0), (1j, 0.0), (math.nan, 0.0), (math.inf, 0.0), (10**400, 0.0),
             (1.0, None), (1.0, math.nan), (1.0, 5.0), (1.0, -0.5),
             (1.0, 1.0, None), (1.0, 1.0, {"steps": None}), (1.0, 1.0, {1: 1.0}),
             (torch.tensor(1.0), 0.0)]  # fmt: skip


@pytest.mark.parametrize("given", NO_SCORES)
def test_a_score_that_is_not_a_number_is_an_error_of_the_environment(given, caplog):
    class Odd(Library):
        async def score(self, messages, ending):
            return Score(*given)

    outcome, reward = play_in_training(Odd())
    assert outcome.ending == "error" and outcome.logs()["ended_by_error"] == 1 and reward != reward
    assert outcome.fault.startswith("score failed (") and outcome.fault in caplog.text


def test_scores_of_any_number_type_become_floats():
    class Counted(Library):
        async def score(self, messages, ending):
            return Score(numpy.float32(0.5), True, {"steps": 3, "seconds": math.nan})

    environment = Counted()
    score = asyncio.run(score_conversation(environment, talk(Spoken({}), environment), 60))
    values = [score.reward, score.score, score.logs["steps"]]
    assert values == [0.5, 1.0, 3.0] and all(type(value) is float for value in values)
    assert math.isnan(score.logs["seconds"]), "a log that a rollout does not have"
