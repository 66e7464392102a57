"""Faults of an environment: errors, and methods that hang or block, cost its own rollout at most. It is closed."""

import asyncio
import math
import threading
from dataclasses import replace

import pytest

from grpo.rollout.multi_turn import conversation, isolation
from grpo.rollout.multi_turn.conversation import play, score_conversation
from grpo.rollout.multi_turn.environment import ToolError
from grpo.rollout.multi_turn.rollout import EnginePolicy, roll_out
from grpo.rollout.multi_turn.templates import template_for
from tests.grpo.rollout.multi_turn.dialects import TOKENIZERS
from tests.grpo.rollout.multi_turn.scripted import LIMITS, Library, ScriptedEngine, Spoken, make_call, make_params, talk
from tests.supervised import wait_until

SOON = replace(LIMITS, tool_seconds=0.2, score_seconds=0.2)
SEARCHES = {"tool_calls": [make_call("search", {"query": "x"})]}


class Tidy(Library):
    """Knows how often it was closed."""

    closed = 0

    async def close(self):
        self.closed += 1


class Unlucky(Library):
    """Its constructor fails for a bad label."""

    def __init__(self, prompt, label):
        super().__init__(prompt, label)
        self.gold = int(label)


def play_unlucky(label):
    return asyncio.run(play(lambda: Unlucky("q", label), Spoken({"content": "x"}), LIMITS))


def test_constructor_error_counts_as_environment_error(caplog):
    template = template_for(TOKENIZERS["qwen3"])
    engine = ScriptedEngine(template.codec, ["42<|im_end|>"])
    outcome, response = asyncio.run(
        roll_out(lambda: Unlucky("q", "x"), EnginePolicy(template, engine, make_params(), 900), LIMITS, 4)
    )
    assert outcome.ending == "error" and "its constructor failed (ValueError" in outcome.fault
    assert response["extra_logs"]["ended_by_error"] == 1 and response["reward"] != response["reward"]
    assert not engine.calls and not response["truncated"] and "self.gold = int" in caplog.text
    outcome, score = play_unlucky("7")
    assert outcome.ending == "done" and not outcome.fault and score.reward == 1


def test_the_traceback_of_an_error_is_logged_once_and_each_error_has_a_line(caplog, monkeypatch):
    monkeypatch.setattr(conversation, "logged_errors", set())
    for label in ("x", "y", "x"):
        play_unlucky(label)
    assert caplog.text.count("Traceback") == 1 and len(caplog.records) == 3
    assert [label in record.getMessage() for record, label in zip(caplog.records, "xyx", strict=True)] == [True] * 3
    play_unlucky(None)  # another kind: a TypeError
    assert caplog.text.count("Traceback") == 2


def raise_lost():
    raise KeyError("no such gold")


@pytest.mark.parametrize("method", ["call", "score", "reply"])
def test_traceback_shows_the_error_and_not_only_its_cause(method, caplog, monkeypatch):
    monkeypatch.setattr(conversation, "logged_errors", set())

    class Careful(Library):
        """Says which of its parts failed."""

    async def fail(*_):
        try:
            raise_lost()
        except KeyError as error:
            raise RuntimeError("the index is damaged") from error

    setattr(Careful, method, fail)
    environment = Careful()
    outcome = talk(Spoken({"tool_calls": [make_call("search", {})]} if method == "call" else {}, {}), environment)
    asyncio.run(score_conversation(environment, outcome, 60))
    (record,) = caplog.records
    assert record.exc_info[0] is RuntimeError and "in raise_lost" in caplog.text and "in fail" in caplog.text


class Mute(Exception):
    """As of a library whose errors are made without what their text needs."""

    def __str__(self):
        return f"{self.reason}"

    __repr__ = __str__


class MuteToolError(Mute, ToolError):
    pass


CANNOT = "an object of type {} that cannot be shown"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("gold"), "'gold'"),
        (TimeoutError("its own"), "its own"),  # not that of a limit
        (Mute(), CANNOT.format("Mute")),
        (MuteToolError(), CANNOT.format("MuteToolError")),
    ],
)
@pytest.mark.parametrize("method", ["__init__", "start", "call", "reply", "score", "close"])
def test_an_error_costs_its_rollout_what_the_method_gives(method, error, text, caplog, monkeypatch):
    monkeypatch.setattr(conversation, "logged_errors", set())
    environments = []

    async def fail(*_):
        raise error

    def fail_to_make(*_):
        raise error

    faulty = type("Faulty", (Tidy,), {method: fail_to_make if method == "__init__" else fail})

    def make():
        environments.append(faulty())
        return environments[-1]

    outcome, score = asyncio.run(play(make, Spoken(SEARCHES, {"content": "x"}), LIMITS))
    assert [each.closed for each in environments] == [method != "close"] * (method != "__init__")
    assert outcome.is_closed == (method != "close")
    if method == "call":
        heard = {MuteToolError: text, TimeoutError: "search took more than 20 seconds"}
        assert outcome.messages[2]["content"] == f"error: {heard.get(type(error), 'search failed')}"
        assert outcome.errors == 1
    if method in ("call", "close"):
        assert outcome.ending == "done" and score.reward == 1
    else:
        assert outcome.ending == "error" and outcome.logs()["ended_by_error"] == 1 and score.reward != score.reward
        assert f"{type(error).__name__}: {text}" in outcome.fault
        assert ("could not be scored" in caplog.text) == (method == "score")
    if method != "call" or type(error) in (KeyError, Mute):  # the others are for the model alone
        assert f"{type(error).__name__}: {text}" in caplog.text


class Blocking(Tidy):
    """Blocks where it is told to, until it is released."""

    def __init__(self, method):
        super().__init__()
        self.method, self.released = method, threading.Event()
        if method not in ("constructor", "tools"):
            setattr(self, method, self.block)

    def made(self):
        if self.method == "constructor":
            self.released.wait()
        return self

    @property
    def tools(self):
        if self.method == "tools":
            self.released.wait()
        return Library.tools

    async def block(self, *_):
        self.released.wait()


@pytest.fixture
def short_grace(monkeypatch):
    monkeypatch.setattr(isolation, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(isolation, "CLOSE_SECONDS", 0.2)


@pytest.mark.parametrize("method", ["constructor", "start", "tools", "call", "reply", "score"])
def test_a_method_that_blocks_its_thread_costs_only_its_own_rollout(method, short_grace):
    blocking = Blocking(method)
    said = ({"content": "x"},) if method in ("reply", "score") else (SEARCHES, {"content": "x"})
    limits = replace(SOON, seconds=1.0)

    async def play_together():
        rollouts = (play(Tidy, Spoken(SEARCHES, {"content": "x"}), LIMITS) for _ in range(8))
        return await asyncio.gather(play(blocking.made, Spoken(*said), limits), *rollouts)

    (outcome, score), *others = asyncio.run(play_together())
    assert outcome.ending == "error" and outcome.logs()["environment_blocked"] == 1 and math.isnan(score.reward)
    assert outcome.logs()["close_failed"] == 1
    assert ("0.2 seconds" if method == "score" else "it blocked its thread") in outcome.fault
    for other, scored_ in others:
        assert other.ending == "done" and scored_.reward == 1 and not other.is_blocked and other.is_closed
    blocking.released.set()
    wait_until(lambda: blocking.closed == 1, "it was not closed as soon as its thread was free", 20)


def test_a_score_that_never_returns_is_a_missing_reward():
    class Endless(Tidy):
        async def score(self, messages, ending):
            await asyncio.sleep(3600)

    environment = Endless()
    outcome, score = asyncio.run(play(lambda: environment, Spoken({"content": "x"}), SOON))
    assert outcome.fault == "score failed (it took more than 0.2 seconds)" and math.isnan(score.reward)
    assert outcome.logs()["ended_by_error"] == 1 and not outcome.is_blocked and environment.closed == 1


def test_close_runs_after_a_policy_that_fails():
    class Lost:
        async def respond(self, messages, tools):
            raise ConnectionError("the engine")

    environment = Tidy()
    with pytest.raises(ConnectionError):
        asyncio.run(play(lambda: environment, Lost(), SOON))
    assert environment.closed == 1


def test_no_thread_stays_after_a_rollout():
    before = threading.active_count()
    for _ in range(3):
        asyncio.run(play(Tidy, Spoken({"content": "x"}), SOON))
    wait_until(lambda: threading.active_count() <= before, "a thread stayed", 20)
