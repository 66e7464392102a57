"""One process has the judge of a run: its key, its limits, its judgements."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from reward import judge_place, settings
from reward.judge import Judge
from reward.judge_place import DistantJudge, JudgeActor

from .conftest import SETTINGS

SAMPLE = ("What is 3 + 4?", "<|channel|>final<|message|>\\boxed{7}<|return|>", "7", True)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of a run."""
    for name, value in (SETTINGS | {"JUDGE_MODELS": "model-a"}).items():
        monkeypatch.setenv(f"GRPO_{name}", value)
    monkeypatch.setenv("GRPO_RUN_DIR", str(tmp_path))
    monkeypatch.setenv(judge_place.VARIABLE, judge_place.NAME)


class Ray:
    """An actor of this process in place of one on another node. Calls go through an event loop, as Ray's do."""

    def __init__(self, actor: JudgeActor) -> None:
        self.calls = 0
        self._loop = asyncio.new_event_loop()
        self._pool = ThreadPoolExecutor(1)
        self._pool.submit(self._loop.run_forever)
        self._actor = actor
        self.reward_response = SimpleNamespace(remote=self._call)

    def _call(self, *arguments: Any) -> Any:
        self.calls += 1
        return asyncio.run_coroutine_threadsafe(self._actor.reward_response(*arguments), self._loop)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


def test_a_process_outside_of_a_run_has_its_own(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(judge_place.VARIABLE)
    monkeypatch.setenv(settings.STAND_IN_VARIABLE, "http://127.0.0.1:1")
    assert isinstance(judge_place.get_judge(), Judge)


def test_all_engines_ask_one_judge(run, serve: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two engines without a run directory share limits and judgements: the same question is paid for once."""
    server = serve(models=("model-a",))
    actor = JudgeActor()
    monkeypatch.setenv(settings.STAND_IN_VARIABLE, "")  # so that it is restored
    asyncio.run(actor.begin({settings.STAND_IN_VARIABLE: server.url}))
    monkeypatch.delenv(settings.STAND_IN_VARIABLE)
    monkeypatch.delenv("GRPO_RUN_DIR")
    handle = Ray(actor)
    monkeypatch.setattr(ray, "get_actor", lambda name: {judge_place.NAME: handle}[name])
    monkeypatch.setattr(ray, "get", lambda call, timeout: call.result(timeout))
    engines = [judge_place.get_judge() for _ in range(2)]
    assert all(isinstance(engine, DistantJudge) for engine in engines)
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda engine: engine.reward_response(1.0, *SAMPLE), engines * 4))
    handle.end()
    assert handle.calls == 8 and len(server.requests) == 1
    assert sorted(verdict.cached for _, verdict in results) == [0.0] + [1.0] * 7
    assert len({reward for reward, _ in results}) == 1
    assert (tmp_path / "judge.sqlite").exists()


def test_the_actor_gets_the_key_and_the_proxy_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"GEMINI_API_KEY": "k", "HTTPS_PROXY": "p", "WANDB_API_KEY": "w", "RAY_AUTH_TOKEN": "t"}.items():
        monkeypatch.setenv(name, value)
    found = judge_place.variables()
    assert found["GEMINI_API_KEY"] == "k" and found["HTTPS_PROXY"] == "p"
    assert not {"WANDB_API_KEY", "RAY_AUTH_TOKEN"} & found.keys()
