"""What an environment raises besides errors stays in its own rollout: it must not cancel or end the engine's."""

import asyncio
import threading
from dataclasses import replace

import pytest

from grpo.rollout.multi_turn.conversation import play
from tests.grpo.rollout.multi_turn.scripted import LIMITS, Library, Spoken, make_call

SEARCH = {"tool_calls": [make_call("search", {"query": "x"})]}
SOON = replace(LIMITS, seconds=5.0, tool_seconds=2.0, score_seconds=2.0)


class Stop(BaseException):
    """As some libraries have, to pass `except Exception`."""


async def leak_cancellation(*_):
    raise asyncio.CancelledError  # as cancel scopes of libraries do


async def cancel_itself(*_):
    asyncio.current_task().cancel()
    await asyncio.sleep(0)


async def cancel_all(*_):
    for task in asyncio.all_tasks():
        task.cancel()


async def exit_process(*_):
    raise SystemExit(2)  # as a parser of arguments does


async def interrupt(*_):
    raise KeyboardInterrupt


async def stop(*_):
    raise Stop


def play_faulty(method, function):
    faulty = type("Faulty", (Library,), {method: function})

    async def play_both():
        return await asyncio.gather(
            play(faulty, Spoken(SEARCH, {"content": "x"}), SOON), play(Library, Spoken({"content": "x"}), SOON)
        )

    return asyncio.run(play_both())


@pytest.mark.parametrize("method", ["start", "call", "reply", "score", "close"])
@pytest.mark.parametrize("function", [leak_cancellation, cancel_itself, cancel_all, exit_process, interrupt, stop])
def test_it_costs_its_own_rollout_at_most(method, function):
    (outcome, score), (other, others_score) = play_faulty(method, function)
    assert other.ending == "done" and others_score.reward == 1.0
    assert not outcome.is_blocked
    if method == "call":
        assert outcome.errors == 1 and outcome.messages[-2]["content"] == "error: search failed"
    if method in ("call", "close"):
        assert outcome.ending == "done" and score.reward == 1.0
    else:
        assert outcome.ending == "error" and score.reward != score.reward
    assert outcome.is_closed == (method != "close")


def test_a_constructor_that_exits_costs_its_own_rollout():
    class Exits(Library):
        def __init__(self):
            raise SystemExit(2)

    outcome, score = asyncio.run(play(Exits, Spoken({"content": "x"}), SOON))
    assert outcome.ending == "error" and "SystemExit" in outcome.fault and score.reward != score.reward


@pytest.mark.parametrize("method", ["start", "call", "reply", "score", "close"])
def test_stopping_the_event_loop_changes_nothing(method):
    async def stop_loop(self, *arguments):
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.05)
        return await getattr(Library, method)(self, *arguments)

    (outcome, score), (other, _) = play_faulty(method, stop_loop)
    assert (outcome.ending, outcome.errors, score.reward, outcome.is_closed) == ("done", 0, 1.0, True)
    assert outcome.messages[2]["content"] == "there x" and other.ending == "done"


def test_cancelling_the_rollout_still_cancels_it():
    ended, called = [], threading.Event()

    class Waits(Library):
        async def call(self, name, arguments):
            called.set()
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append("call")

        async def close(self):
            ended.append("close")

    async def cancel_rollout():
        rollout = asyncio.create_task(play(Waits, Spoken(SEARCH), LIMITS))
        await asyncio.to_thread(called.wait)
        rollout.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rollout

    asyncio.run(cancel_rollout())
    assert ended == ["call", "close"]
