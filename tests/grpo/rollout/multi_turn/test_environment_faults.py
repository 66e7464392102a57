"""Environment faults: the rollout gets no reward, and other rollouts continue."""

import asyncio
import json
import math
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy
import pytest
import torch

from grpo.rollout.multi_turn import conversation, isolation
from grpo.rollout.multi_turn.conversation import is_message, make_environment, play, scored
from grpo.rollout.multi_turn.environment import Score, Tool, ToolError
from grpo.rollout.multi_turn.openai_policy import OpenAIPolicy
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


def test_constructor_error_counts_as_environment_error(caplog):
    template = template_for(TOKENIZERS["qwen3"])
    engine = ScriptedEngine(template.codec, ["42<|im_end|>"])
    outcome, response = asyncio.run(
        roll_out(make_environment(Unlucky, "q", "x"), EnginePolicy(template, engine, params(), 900), LIMITS, 4)
    )
    assert outcome.ending == "error" and "its constructor failed (ValueError" in outcome.fault
    assert response["extra_logs"]["ended_by_error"] == 1 and response["reward"] != response["reward"]
    assert not engine.calls and not response["truncated"] and "self.gold = int" in caplog.text
    sound = make_environment(Unlucky, "q", "7")
    outcome = talk(Spoken({"content": "x"}), sound)
    assert sound.gold == 7 and outcome.ending == "done" and not outcome.fault


def test_the_traceback_of_an_error_is_logged_once_and_each_error_has_a_line(caplog, monkeypatch):
    monkeypatch.setattr(conversation, "logged_errors", set())
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
def test_invalid_return_value_is_an_environment_error(name, value, caplog):
    class Wrong(Library):
        """Has something else there."""

    async def answer(*arguments):
        return value(*arguments)

    setattr(Wrong, name, value if name == "tools" else answer)
    environment = Wrong()
    outcome = talk(Spoken({"content": "x"}), environment)
    score = asyncio.run(scored(environment, outcome, 60))
    assert outcome.ending == "error" and score.reward != score.reward and "no reward" in caplog.text


def test_unrenderable_message_ends_its_rollout_but_not_the_run(caplog):
    class Odd(Library):
        async def reply(self, messages):
            return [{"role": "oracle", "content": "x"}]

    template = template_for(TOKENIZERS["qwen3"])
    policy = EnginePolicy(template, ScriptedEngine(template.codec, ["42<|im_end|>"]), params(), 900)
    outcome, response = asyncio.run(roll_out(Odd(), policy, LIMITS, 4))
    assert outcome.ending == "error" and outcome.turns == 1 and response["reward"] != response["reward"]
    assert "oracle" in caplog.text


@pytest.mark.parametrize("said", [None, []])
def test_a_conversation_without_a_first_message_has_no_reward(said):
    class Silent(Library):
        async def start(self):
            return said

    template = template_for(TOKENIZERS["plain"])
    engine = ScriptedEngine(template.codec, ["42" + template.stops[0]])
    outcome, response = asyncio.run(roll_out(Silent(), EnginePolicy(template, engine, params(), 900), LIMITS, 4))
    assert outcome.ending == "error" and "start" in outcome.fault and not engine.calls
    assert response["reward"] != response["reward"]


@pytest.mark.parametrize("answer", [None, 7, ["there"], {"role": "tool", "content": "there"}])
def test_a_tool_that_returns_no_text_is_an_observation_that_says_so(answer, caplog):
    class Odd(Library):
        async def call(self, name, arguments):
            return answer

    outcome = talk(Spoken({"tool_calls": [call("search", {})]}, {"content": "ok"}), Odd())
    heard = f"search returned a {type(answer).__name__} instead of text"
    assert outcome.messages[2]["content"] == f"error: {heard}" and heard in caplog.text
    assert (outcome.ending, outcome.calls, outcome.errors) == ("done", 1, 1)


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


class API:
    """Stands in for ``openai.AsyncOpenAI``: serialises requests as the protocol does, and answers each with "ok"."""

    def __init__(self):
        self.chat = SimpleNamespace(completions=self)

    async def create(self, **request):
        json.dumps(request, ensure_ascii=False, allow_nan=False).encode()
        message = SimpleNamespace(content="ok", model_extra=None, tool_calls=None)
        return SimpleNamespace(usage=None, choices=[SimpleNamespace(message=message, finish_reason="stop")])


def in_training(environment):
    template = template_for(TOKENIZERS["qwen3"])
    policy = EnginePolicy(template, ScriptedEngine(template.codec, ["ok<|im_end|>"]), params(), 4000)
    outcome, response = asyncio.run(roll_out(environment, policy, LIMITS, 4))
    return outcome, response["reward"]


def in_evaluation(environment):
    outcome = talk(OpenAIPolicy(API(), "m"), environment)
    return outcome, asyncio.run(scored(environment, outcome, 60)).reward


NO_MESSAGES = [None, "hello", {}, {"content": "hello"}, {"role": None}, {"role": "user", "content": {1, 2}},
               {"role": "user", "content": "\ud800"}, {"role": "user", "content": "x", "number": math.nan}]  # fmt: skip


@pytest.mark.parametrize("run", [in_training, in_evaluation])
@pytest.mark.parametrize("method", ["start", "reply", "in place"])
@pytest.mark.parametrize("item", NO_MESSAGES)
def test_an_invalid_message_is_an_error_of_the_environment(run, method, item):
    class Odd(Library):
        async def start(self):
            return [item] if method == "start" else await super().start()

        async def reply(self, messages):
            if method == "in place":
                messages.insert(0, item)
            return [item] if method == "reply" else []

    outcome, reward = run(Odd())
    assert outcome.ending == "error" and reward != reward
    assert ("messages" if method == "in place" else method) in outcome.fault and "message" in outcome.fault


@pytest.mark.parametrize("run", [in_training, in_evaluation])
def test_tool_calls_of_the_environments_own_messages_are_those_of_the_protocol(run):
    function = {"name": "search", "arguments": "{}"}

    class Example(Library):
        tool_calls = None

        async def start(self):
            shown = {"role": "assistant", "content": "ok", "tool_calls": self.tool_calls}
            return [*await super().start(), shown, *await super().start()]

    for calls in (None, [], [{"id": "1", "type": "function", "function": function}]):
        Example.tool_calls = calls
        assert run(Example()) == (run(Example())[0], 1.0), calls
    for calls in ("search", [None], [{"function": function}], [{"id": "1", "type": "function", "function": {}}]):
        Example.tool_calls = calls
        outcome, reward = run(Example())
        assert outcome.ending == "error" and "start" in outcome.fault and reward != reward


@pytest.mark.parametrize("run", [in_training, in_evaluation])
def test_tool_that_no_protocol_supports_is_an_environment_error(run):
    class Odd(Library):
        tools = (Tool("search", "look it up", {"type": object}),)

    outcome, reward = run(Odd())
    assert outcome.ending == "error" and "tools" in outcome.fault and reward != reward


NO_SCORES = [(None, 0.0), ("1", 0.0), ([1.0], 0.0), (1j, 0.0), (math.nan, 0.0), (math.inf, 0.0), (10**400, 0.0),
             (1.0, None), (1.0, math.nan), (1.0, 5.0), (1.0, -0.5),
             (1.0, 1.0, None), (1.0, 1.0, {"steps": None}), (1.0, 1.0, {1: 1.0}),
             (torch.tensor(1.0), 0.0)]  # fmt: skip


@pytest.mark.parametrize("run", [in_training, in_evaluation])
@pytest.mark.parametrize("given", NO_SCORES)
def test_a_score_that_is_not_a_number_is_an_error_of_the_environment(run, given, caplog):
    class Odd(Library):
        async def score(self, messages, ending):
            return Score(*given)

    outcome, reward = run(Odd())
    assert outcome.ending == "error" and outcome.logs()["ended_by_error"] == 1 and reward != reward
    assert outcome.fault.startswith("score failed (") and outcome.fault in caplog.text


def test_scores_of_any_number_type_become_floats():
    class Counted(Library):
        async def score(self, messages, ending):
            return Score(numpy.float32(0.5), True, {"steps": 3, "seconds": math.nan})

    environment = Counted()
    score = asyncio.run(scored(environment, talk(Spoken({}), environment), 60))
    values = [score.reward, score.score, score.logs["steps"]]
    assert values == [0.5, 1.0, 3.0] and all(type(value) is float for value in values)
    assert math.isnan(score.logs["seconds"]), "a log that a rollout does not have"


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


SOON = replace(LIMITS, tool_seconds=0.2, score_seconds=0.2)


class Tidy(Library):
    """Knows whether it was closed."""

    closed = 0

    async def close(self):
        self.closed += 1


def played(environment, *messages, limits=SOON):
    return asyncio.run(play(environment, Spoken(*messages), limits))


class Blocking(Tidy):
    """Blocks where it is told to, until it is released."""

    def __init__(self, method):
        super().__init__()
        self.released = threading.Event()
        setattr(self, method, self.block)

    async def block(self, *_):
        self.released.wait()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(isolation, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(isolation, "CLOSE_SECONDS", 0.2)


SEARCHES = {"tool_calls": [call("search", {"query": "x"})]}


@pytest.mark.parametrize("method", ["start", "call", "reply", "score"])
def test_a_method_that_blocks_its_thread_costs_only_its_own_rollout(method, impatient):
    blocking, sound = Blocking(method), [Tidy() for _ in range(8)]
    said = ({"content": "x"},) if method in ("reply", "score") else (SEARCHES, {"content": "x"})
    limits = replace(SOON, seconds=1.0)

    async def together():
        rollouts = (play(each, Spoken(SEARCHES, {"content": "x"}), limits) for each in sound)
        return await asyncio.gather(play(blocking, Spoken(*said), limits), *rollouts)

    (outcome, score), *others = asyncio.run(together())
    assert outcome.ending == "error" and outcome.logs()["environment_blocked"] == 1 and math.isnan(score.reward)
    assert outcome.logs()["close_failed"] == 1
    assert ("0.2 seconds" if method == "score" else "it blocked its thread") in outcome.fault
    for other, scored_ in others:
        assert other.ending == "done" and scored_.reward == 1 and not other.is_blocked and other.is_closed
    blocking.released.set()
    wait_until(lambda: blocking.closed == 1)  # as soon as its thread is free


def test_a_score_that_never_returns_is_a_missing_reward(impatient):
    class Endless(Tidy):
        async def score(self, messages, ending):
            await asyncio.sleep(3600)

    outcome, score = played(environment := Endless(), {"content": "x"})
    assert outcome.fault == "score failed (it took more than 0.2 seconds)" and math.isnan(score.reward)
    assert outcome.logs()["ended_by_error"] == 1 and not outcome.is_blocked and environment.closed == 1


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("dialect", TOKENIZERS)
def test_a_lone_surrogate_from_a_tool_is_a_tool_error(text, fails, dialect):
    class Echo(Library):
        async def call(self, name, arguments):
            if fails:
                raise ToolError(text)
            return text

    outcome, score = played(Echo(), SEARCHES, {"content": "ok"})
    assert (outcome.ending, outcome.errors, score.reward) == ("done", 1, 1.0)
    assert "error: " in outcome.messages[2]["content"] and is_message(outcome.messages[2])
    if not fails:
        assert "search returned text that is not valid Unicode" in outcome.messages[2]["content"]


async def fail(*_):
    raise KeyError("gold")


@pytest.mark.parametrize("method", ["start", "reply", "score", "call"])
def test_close_runs_once_after_a_fault(method):
    environment = Tidy()
    setattr(environment, method, fail)
    outcome, _ = played(environment, SEARCHES, {"content": "x"})
    assert environment.closed == 1 and outcome.is_closed


def test_close_runs_after_a_policy_that_fails():
    class Lost:
        async def respond(self, messages, tools):
            raise ConnectionError("the engine")

    environment = Tidy()
    with pytest.raises(ConnectionError):
        asyncio.run(play(environment, Lost(), SOON))
    assert environment.closed == 1


def test_close_runs_after_a_cancelled_rollout_and_a_call_in_progress_is_cancelled():
    class Slow(Tidy):
        reached = False

        async def call(self, name, arguments):
            Slow.reached = True
            try:
                await asyncio.sleep(3600)
            finally:
                Slow.reached = False

    environment = Slow()

    async def cancelled():
        rollout = asyncio.create_task(play(environment, Spoken(SEARCHES), LIMITS))
        while not Slow.reached:
            await asyncio.sleep(0.01)
        rollout.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rollout
        assert environment.closed == 1

    asyncio.run(cancelled())
    assert not Slow.reached


async def sleep(*_):
    await asyncio.sleep(3600)


@pytest.mark.parametrize("close", [fail, sleep])
def test_a_close_that_fails_or_hangs_is_counted_and_keeps_the_reward(close, impatient, caplog):
    environment = Tidy()
    environment.close = close
    outcome, score = played(environment, {"content": "x"})
    assert score.reward == 1 and outcome.logs()["close_failed"] == 1 and "close of an environment" in caplog.text


def test_an_environment_that_answers_calls_itself_still_does():
    class Own(Tidy):
        answers_calls = True

        async def reply(self, messages):
            calls = messages[-1].get("tool_calls") or []
            return [{"role": "tool", "tool_call_id": each["id"], "content": "mine"} for each in calls] or None

    outcome, _ = played(Own(), SEARCHES, {"content": "x"})
    assert outcome.messages[2]["content"] == "mine" and (outcome.ending, outcome.turns) == ("done", 2)


def test_no_thread_stays_after_a_rollout():
    before = threading.active_count()
    for _ in range(3):
        played(Tidy(), {"content": "x"})
    wait_until(lambda: threading.active_count() <= before)
