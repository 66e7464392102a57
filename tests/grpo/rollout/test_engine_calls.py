"""What the engines of a run are asked; one that dies ends it."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from grpo.rollout import engine_calls
from grpo.rollout.engine_calls import EngineCalls


class Engine:
    """An engine whose answers come when a test says so. What it has sampled is in ``known``."""

    def __init__(self) -> None:
        self.known: list[int] | Exception = []
        self.generate_responses = SimpleNamespace(remote=lambda **_: object())
        self.sampled = SimpleNamespace(remote=lambda: self.known)


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The references whose answers have come."""
    come: list[Any] = []

    def wait(references: list, **_: Any) -> tuple[list, list]:
        return [each for each in references if each in come][:1], []

    def get(references: list) -> list:
        for each in references:
            if isinstance(each, Exception):
                raise each
        return references

    monkeypatch.setattr(engine_calls, "ray", SimpleNamespace(wait=wait, get=get))
    return come


def make_prompt(seed: int) -> dict[str, Any]:
    return {"prompt": "p", "sampling_params": SimpleNamespace(seed=seed)}


def test_prompts_are_sampled_once_their_engines_say_so_of_all(answered) -> None:
    engines, sampled = [Engine(), Engine()], threading.Event()
    calls = EngineCalls(engines, None)
    sent = [calls.send(engines[seed % 2], make_prompt(seed)) for seed in (2, 3, 4)]
    for known, is_sampled in (([[2, 4], []], False), ([[2], [3]], False), ([[2, 4, 6], [3]], True)):
        engines[0].known, engines[1].known = known
        assert calls.wait(sent, sampled) == []
        assert sampled.is_set() == is_sampled
    answered.append(sent[1])
    assert calls.wait(sent, sampled) == [sent[1]]


def test_an_engine_that_dies_ends_the_wait(answered) -> None:
    engine = Engine()
    calls = EngineCalls([engine], None)
    sent = calls.send(engine, make_prompt(2))
    engine.known = ActorDiedError()
    with pytest.raises(ActorDiedError):
        calls.wait([sent], threading.Event())
