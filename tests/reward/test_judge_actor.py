"""One process has the judge of a run: its key, its limits, its judgements."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import ray

from reward import judge_actor, settings
from reward.judge_actor import JudgeActor

from .gemini_server import KEY

SAMPLE = ("What is 3 + 4?", "<|channel|>final<|message|>\\boxed{7}<|return|>", "7", True)


def test_all_engines_ask_one_judge(serve, load, tmp_path, monkeypatch) -> None:
    """Engines without a run directory and a key: the same question is paid for once. Only Ray's transport is ours."""
    server, loop = serve(latency=0.2), asyncio.new_event_loop()
    load(server)
    threading.Thread(target=loop.run_forever, daemon=True).start()
    actor = JudgeActor()
    monkeypatch.setenv("GEMINI_API_KEY", "")
    asyncio.run_coroutine_threadsafe(actor.begin({"GEMINI_API_KEY": KEY}), loop).result()
    for name in ("GRPO_RUN_DIR", "GEMINI_API_KEY"):
        monkeypatch.delenv(name)
    call = lambda *sample: asyncio.run_coroutine_threadsafe(actor.reward_response(*sample), loop)  # noqa: E731
    handle = SimpleNamespace(reward_response=SimpleNamespace(remote=call))
    monkeypatch.setattr(ray, "get_actor", lambda name: {judge_actor.NAME: handle}[name])
    monkeypatch.setattr(ray, "get", lambda call, timeout: call.result(timeout))
    monkeypatch.setenv(judge_actor.VARIABLE, judge_actor.NAME)
    engines = [judge_actor.find_judge() for _ in range(2)]
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda ask: ask(1.0, *SAMPLE), engines * 4))
    loop.call_soon_threadsafe(loop.stop)
    assert len(server.requests) == 1 and KEY in server.requests[0].text
    assert sorted(verdict.cached for _, verdict in results) == [0.0] + [1.0] * 7
    assert len({reward for reward, _ in results}) == 1 and (tmp_path / "judge.jsonl").exists()


def test_a_process_outside_of_a_run_has_its_own_which_all_threads_ask(serve, load, monkeypatch) -> None:
    """The stand-in's quota is its own: with the user's, the second rollout would wait for a minute."""
    load(server := serve(), JUDGE_RPM="1")
    monkeypatch.setenv(settings.STAND_IN_VARIABLE, server.url)
    ask = judge_actor.find_judge()
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda n: ask(1.0, f"{n}?", *SAMPLE[1:]), range(8)))
    assert all(not verdict.failed for _, verdict in results) and server.asked == ["first"] * 8
