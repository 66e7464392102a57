"""Deadlines and `close`: an environment that blocks or hangs costs its own rollout, and is closed in any case."""

import asyncio
import math
import threading
import time
from dataclasses import replace

import pytest

from grpo.rollout.multi_turn import isolation
from grpo.rollout.multi_turn.conversation import play
from tests.grpo.rollout.multi_turn.scripted import LIMITS, Library, Spoken, call


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
    return asyncio.run(play(lambda: environment, Spoken(*messages), limits))


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
def impatient(monkeypatch):
    monkeypatch.setattr(isolation, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(isolation, "CLOSE_SECONDS", 0.2)


SEARCHES = {"tool_calls": [call("search", {"query": "x"})]}


@pytest.mark.parametrize("method", ["constructor", "start", "tools", "call", "reply", "score"])
def test_a_method_that_blocks_its_thread_costs_only_its_own_rollout(method, impatient):
    blocking = Blocking(method)
    said = ({"content": "x"},) if method in ("reply", "score") else (SEARCHES, {"content": "x"})
    limits = replace(SOON, seconds=1.0)

    async def together():
        rollouts = (play(Tidy, Spoken(SEARCHES, {"content": "x"}), LIMITS) for _ in range(8))
        return await asyncio.gather(play(blocking.made, Spoken(*said), limits), *rollouts)

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
        asyncio.run(play(lambda: environment, Lost(), SOON))
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
        rollout = asyncio.create_task(play(lambda: environment, Spoken(SEARCHES), LIMITS))
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


def test_no_thread_stays_after_a_rollout():
    before = threading.active_count()
    for _ in range(3):
        played(Tidy(), {"content": "x"})
    wait_until(lambda: threading.active_count() <= before)
