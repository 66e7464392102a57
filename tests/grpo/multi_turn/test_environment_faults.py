"""What an environment does wrong: its rollout has no reward, and the others go on."""

import asyncio

import pytest

from grpo.multi_turn import conversation
from grpo.multi_turn.conversation import Limits, make_environment, scored
from grpo.multi_turn.rollout import EnginePolicy, roll_out
from grpo.multi_turn.templates import template_for
from tests.grpo.multi_turn.dialects import TOKENIZERS
from tests.grpo.multi_turn.scripted import Library, ScriptedEngine, Spoken, call, params, talk


def test_an_environment_that_cannot_score_gives_no_reward(caplog):
    class Unsure(Library):
        async def score(self, messages, ending):
            raise KeyError("gold")

    score = asyncio.run(scored(Unsure(), talk(Spoken({"content": "x"}), Unsure())))
    assert score.reward != score.reward and "could not be scored" in caplog.text


@pytest.mark.parametrize("method", ["start", "reply"])
@pytest.mark.parametrize("error", [KeyError("gold"), TimeoutError("its own")])
def test_an_error_of_the_environment_ends_its_rollout_and_no_run(method, error, caplog):
    class Broken(Library):
        """Says nothing of what it has."""

    async def fail(*_):
        raise error

    setattr(Broken, method, fail)
    environment = Broken()
    outcome = talk(Spoken({"content": "x"}), environment)
    assert outcome.ending == "error" and outcome.logs()["ended_by_error"] == 1
    assert type(error).__name__ in caplog.text
    score = asyncio.run(scored(environment, outcome))
    assert score.reward != score.reward


class Unlucky(Library):
    """Cannot be made where the label is bad."""

    def __init__(self, prompt, label):
        super().__init__(prompt, label)
        self.gold = int(label)


def test_an_error_in_the_constructor_is_one_of_the_environment(caplog):
    template = template_for(TOKENIZERS["qwen3"])
    engine = ScriptedEngine(template.codec, ["42<|im_end|>"])
    outcome, response = asyncio.run(
        roll_out(make_environment(Unlucky, "q", "x"), EnginePolicy(template, engine, params(), 900), Limits(), 4)
    )
    assert outcome.ending == "error" and "its constructor failed (ValueError" in outcome.fault
    assert response["extra_logs"]["ended_by_error"] == 1 and response["reward"] != response["reward"]
    assert not engine.calls and not response["truncated"] and "self.gold = int" in caplog.text
    sound = make_environment(Unlucky, "q", "7")
    outcome = talk(Spoken({"content": "x"}), sound)
    assert sound.gold == 7 and outcome.ending == "done" and not outcome.fault


def test_the_traceback_of_an_error_is_logged_once_and_each_error_has_a_line(caplog, monkeypatch):
    monkeypatch.setattr(conversation, "_seen", set())
    for label in ("x", "y", "x"):
        talk(Spoken({"content": "x"}), make_environment(Unlucky, "q", label))
    assert caplog.text.count("Traceback") == 1 and len(caplog.records) == 3
    assert [label in record.getMessage() for record, label in zip(caplog.records, "xyx", strict=True)] == [True] * 3
    talk(Spoken({"content": "x"}), make_environment(Unlucky, "q", None))  # another kind: a TypeError
    assert caplog.text.count("Traceback") == 2


@pytest.mark.parametrize("name, value", [
    ("tools", property(lambda self: 1 / 0)), ("tools", ["search"]), ("start", lambda self: "hello"),
    ("reply", lambda self, messages: "hello"), ("score", lambda self, messages, ending: 1.0),
])  # fmt: skip
def test_what_an_environment_may_not_return_is_an_error_of_it(name, value, caplog):
    class Wrong(Library):
        """Has something else there."""

    async def answer(*arguments):
        return value(*arguments)

    setattr(Wrong, name, value if name == "tools" else answer)
    environment = Wrong()
    outcome = talk(Spoken({"content": "x"}), environment)
    assert outcome.ending == ("done" if name == "score" else "error")
    score = asyncio.run(scored(environment, outcome))
    assert score.reward != score.reward and "no reward" in caplog.text


def test_a_message_that_the_template_cannot_hold_ends_its_rollout_and_no_run(caplog):
    class Odd(Library):
        async def reply(self, messages):
            return [{"role": "oracle", "content": "x"}]

    template = template_for(TOKENIZERS["qwen3"])
    policy = EnginePolicy(template, ScriptedEngine(template.codec, ["42<|im_end|>"]), params(), 900)
    outcome, response = asyncio.run(roll_out(Odd(), policy, Limits(), 4))
    assert outcome.ending == "error" and outcome.turns == 1 and response["reward"] != response["reward"]
    assert "oracle" in caplog.text


@pytest.mark.parametrize("said", [None, []])
def test_a_conversation_without_a_first_message_has_no_reward(said):
    class Silent(Library):
        async def start(self):
            return said

    template = template_for(TOKENIZERS["plain"])
    engine = ScriptedEngine(template.codec, ["42" + template.stops[0]])
    outcome, response = asyncio.run(roll_out(Silent(), EnginePolicy(template, engine, params(), 900), Limits(), 4))
    assert outcome.ending == "error" and "start" in outcome.fault and not engine.calls
    assert response["reward"] != response["reward"]


@pytest.mark.parametrize("answer", [None, 7, ["there"], {"role": "tool", "content": "there"}])
def test_a_tool_that_returns_no_text_is_an_observation_that_says_so(answer, caplog):
    class Odd(Library):
        async def call(self, name, arguments):
            return answer

    outcome = talk(Spoken({"tool_calls": [call("search", {})]}, {"content": "ok"}), Odd())
    heard = f"search returned a {type(answer).__name__}, no text"
    assert outcome.messages[2]["content"] == f"error: {heard}" and heard in caplog.text
    assert (outcome.ending, outcome.calls, outcome.errors) == ("done", 1, 1)


def lost():
    raise KeyError("no such gold")


@pytest.mark.parametrize("place", ["call", "score", "reply"])
def test_the_traceback_is_that_of_the_error_and_not_of_its_cause_alone(place, caplog, monkeypatch):
    monkeypatch.setattr(conversation, "_seen", set())

    class Careful(Library):
        """Says which of its parts failed."""

    async def fail(*_):
        try:
            lost()
        except KeyError as error:
            raise RuntimeError("the index is damaged") from error

    setattr(Careful, place, fail)
    environment = Careful()
    outcome = talk(Spoken({"tool_calls": [call("search", {})]} if place == "call" else {}, {}), environment)
    asyncio.run(scored(environment, outcome))
    (record,) = caplog.records
    assert record.exc_info[0] is RuntimeError and "in lost" in caplog.text and "in fail" in caplog.text
