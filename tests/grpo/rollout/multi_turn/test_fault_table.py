"""The fault table of docs/environments.md: each fault is injected into one of eight rollouts."""

import asyncio
import math
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from grpo.rollout.multi_turn import isolation
from grpo.rollout.multi_turn.conversation import play
from tests.grpo.rollout.multi_turn.scripted import LIMITS, Library, Spoken, make_call

PAGE = Path(__file__).parents[4] / "docs" / "environments.md"
SOON = replace(LIMITS, tool_seconds=1.0, score_seconds=1.0, seconds=2.0)
SEARCH = {"tool_calls": [make_call("search", {"query": "x"})]}

RELEASED = threading.Event()  # lets blocked threads end


def read_rows() -> dict[str, tuple[str, str]]:
    """Return what the table says of each fault: the metric that counts it, and its cost."""
    table = PAGE.read_text(encoding="utf-8").split("| fault |")[1].split("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {fault: (re.findall(r"`(\w+)`", counted)[0], cost) for fault, _, counted, cost in cells}


async def raise_error(*_: object) -> None:
    raise KeyError("gold")


async def hang(*_: object) -> None:
    await asyncio.sleep(3600)


async def block(*_: object) -> None:
    RELEASED.wait()


async def say_nonsense(*_: object) -> object:
    return "nonsense"


async def say_no_unicode(*_: object) -> str:
    return "\ud800"


def make_faulty(name: str, method: Callable) -> Callable[[], Library]:
    return type("Faulty", (Library,), {name: method})


def fail_to_construct() -> Library:
    raise KeyError("gold")


def block_and_make() -> Library:
    RELEASED.wait()
    return Library()


UNKNOWN = {"tool_calls": [make_call("find", {})]}
NO_JSON = {"tool_calls": [make_call("search", "{")]}
FAULTS: dict[str, list[tuple[Callable[[], Library], dict]]] = {
    "a tool is unknown, or fails": [(Library, UNKNOWN), (make_faulty("call", raise_error), SEARCH)],
    "a tool takes longer than `TOOL_SECONDS`": [(make_faulty("call", hang), SEARCH)],
    "a tool gets arguments that are not JSON, or returns invalid Unicode": [
        (Library, NO_JSON),
        (make_faulty("call", say_no_unicode), SEARCH),
    ],
    "the constructor, `start`, or `reply` fails, or returns something other than messages": [
        (fail_to_construct, SEARCH),
        *((make_faulty(name, method), SEARCH) for name in ("start", "reply") for method in (raise_error, say_nonsense)),
    ],
    "`score` fails, or returns no finite number": [
        (make_faulty("score", method), SEARCH) for method in (raise_error, say_nonsense)
    ],
    "`score` takes longer than `SCORE_SECONDS`": [(make_faulty("score", hang), SEARCH)],
    "the constructor or a method blocks its thread (`time.sleep`, an endless loop)": [
        (block_and_make, SEARCH),
        *((make_faulty(name, block), SEARCH) for name in ("start", "call", "reply", "score")),
    ],
    "`close` fails": [(make_faulty("close", raise_error), SEARCH)],
    "`close` takes longer than 10 s": [(make_faulty("close", hang), SEARCH)],
}


def play_eight(make: Callable[[], Library], said: dict) -> list:
    """Return the outcomes and scores of eight concurrent rollouts, the first with a fault."""

    async def play_together() -> list:
        members = [(make, said), *((Library, SEARCH) for _ in range(7))]
        return await asyncio.gather(*(play(each, Spoken(first, {"content": "x"}), SOON) for each, first in members))

    return asyncio.run(play_together())


def test_every_fault_of_the_table_is_injected():
    assert list(read_rows()) == list(FAULTS)


@pytest.mark.parametrize(("fault", "number"), [(fault, i) for fault in FAULTS for i in range(len(FAULTS[fault]))])
def test_a_fault_costs_what_the_table_says(fault, number, monkeypatch, caplog):
    monkeypatch.setattr(isolation, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(isolation, "CLOSE_SECONDS", 0.3)
    metric, cost = read_rows()[fault]
    RELEASED.clear()
    (outcome, score), *others = play_eight(*FAULTS[fault][number])
    RELEASED.set()
    assert outcome.logs()[metric] == 1
    assert math.isnan(score.reward) == cost.startswith("its reward")
    for other, other_score in others:
        assert (other.ending, other_score.reward, other.logs()[metric]) == ("done", 1.0, 0)
    assert metric != "close_failed" or "close of an environment" in caplog.text
