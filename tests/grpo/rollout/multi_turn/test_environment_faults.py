"""Errors of an environment: its rollout gets no reward, and other rollouts continue."""

import asyncio

import pytest

from grpo.rollout.multi_turn import conversation
from grpo.rollout.multi_turn.conversation import play, scored
from grpo.rollout.multi_turn.environment import ToolError
from grpo.rollout.multi_turn.rollout import EnginePolicy, roll_out
from grpo.rollout.multi_turn.templates import template_for
from tests.grpo.rollout.multi_turn.dialects import TOKENIZERS
from tests.grpo.rollout.multi_turn.scripted import LIMITS, Library, ScriptedEngine, Spoken, call, params, talk


def test_an_environment_that_cannot_score_gives_no_reward(caplog):
    class Unsure(Library):
        async def score(self, messages, ending):
            raise KeyError("gold")

    score = asyncio.run(scored(Unsure(), talk(Spoken({"content": "x"}), Unsure()), 60))
    assert score.reward != score.reward and "could not be scored" in caplog.text


@pytest.mark.parametrize("method", ["start", "reply"])
@pytest.mark.parametrize("error", [KeyError("gold"), TimeoutError("its own")])
def test_environment_error_ends_its_rollout_but_not_the_run(method, error, caplog):
    class Broken(Library):
        """Says nothing of what it has."""

    async def fail(*_):
        raise error

    setattr(Broken, method, fail)
    environment = Broken()
    outcome = talk(Spoken({"content": "x"}), environment)
    assert outcome.ending == "error" and outcome.logs()["ended_by_error"] == 1
    assert type(error).__name__ in caplog.text
    score = asyncio.run(scored(environment, outcome, 60))
    assert score.reward != score.reward


class Unlucky(Library):
    """Its constructor fails for a bad label."""

    def __init__(self, prompt, label):
        super().__init__(prompt, label)
        self.gold = int(label)


def made(label):
    return asyncio.run(play(lambda: Unlucky("q", label), Spoken({"content": "x"}), LIMITS))


def test_constructor_error_counts_as_environment_error(caplog):
    template = template_for(TOKENIZERS["qwen3"])
    engine = ScriptedEngine(template.codec, ["42<|im_end|>"])
    outcome, response = asyncio.run(
        roll_out(lambda: Unlucky("q", "x"), EnginePolicy(template, engine, params(), 900), LIMITS, 4)
    )
    assert outcome.ending == "error" and "its constructor failed (ValueError" in outcome.fault
    assert response["extra_logs"]["ended_by_error"] == 1 and response["reward"] != response["reward"]
    assert not engine.calls and not response["truncated"] and "self.gold = int" in caplog.text
    outcome, score = made("7")
    assert outcome.ending == "done" and not outcome.fault and score.reward == 1


def test_the_traceback_of_an_error_is_logged_once_and_each_error_has_a_line(caplog, monkeypatch):
    monkeypatch.setattr(conversation, "logged_errors", set())
    for label in ("x", "y", "x"):
        made(label)
    assert caplog.text.count("Traceback") == 1 and len(caplog.records) == 3
    assert [label in record.getMessage() for record, label in zip(caplog.records, "xyx", strict=True)] == [True] * 3
    made(None)  # another kind: a TypeError
    assert caplog.text.count("Traceback") == 2


def lost():
    raise KeyError("no such gold")


@pytest.mark.parametrize("method", ["call", "score", "reply"])
def test_traceback_shows_the_error_and_not_only_its_cause(method, caplog, monkeypatch):
    monkeypatch.setattr(conversation, "logged_errors", set())

    class Careful(Library):
        """Says which of its parts failed."""

    async def fail(*_):
        try:
            lost()
        except KeyError as error:
            raise RuntimeError("the index is damaged") from error

    setattr(Careful, method, fail)
    environment = Careful()
    outcome = talk(Spoken({"tool_calls": [call("search", {})]} if method == "call" else {}, {}), environment)
    asyncio.run(scored(environment, outcome, 60))
    (record,) = caplog.records
    assert record.exc_info[0] is RuntimeError and "in lost" in caplog.text and "in fail" in caplog.text


class Mute(Exception):
    """As of a library whose errors are made without what their text needs."""

    def __str__(self):
        return f"{self.reason}"

    __repr__ = __str__


class MuteToolError(Mute, ToolError):
    pass


@pytest.mark.parametrize("error", [Mute, MuteToolError])
@pytest.mark.parametrize("method", ["__init__", "start", "call", "reply", "score", "close"])
def test_an_error_that_cannot_be_shown_is_a_fault_like_any_other(method, error, caplog, monkeypatch):
    monkeypatch.setattr(conversation, "logged_errors", set())

    async def fail(*_):
        raise error

    def fail_to_make(*_):
        raise error

    faulty = type("Faulty", (Library,), {method: fail_to_make if method == "__init__" else fail})
    searches = {"tool_calls": [call("search", {"query": "x"})]}
    outcome, score = asyncio.run(play(faulty, Spoken(searches, {"content": "x"}), LIMITS))
    if method == "call":
        heard = "search failed" if error is Mute else "an object of type MuteToolError that cannot be shown"
        assert outcome.messages[2]["content"] == f"error: {heard}" and outcome.errors == 1
    if method in ("call", "close"):
        assert outcome.ending == "done" and score.reward == 1 and outcome.is_closed == (method == "call")
    else:
        assert outcome.ending == "error" and score.reward != score.reward and error.__name__ in outcome.fault
    if (method, error) != ("call", MuteToolError):  # which is for the model alone
        assert f"{error.__name__}: an object of type {error.__name__} that cannot be shown" in caplog.text
