"""The reward function with a judge: what is judged, and what a rollout gets that is not."""

import asyncio
import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import ray

from reward import judge_actor, settings
from reward.judge import Verdict
from reward.judge_actor import JudgeActor
from reward.reward_func import LOG_KEYS

from .gemini_server import KEY
from .harmony import PROMPT, RIGHT, WRONG


def test_the_reward_is_the_weighted_sum(serve, load) -> None:
    loaded = load(serve(), CORRECTNESS_WEIGHT="0.7", QUALITY_WEIGHT="0.3")
    working = RIGHT.replace("3+4", "3+4=7,7=7")  # two "=": half of the best score from the server
    for response, correct, quality in (
        (working, 1.0, 0.5),
        (RIGHT, 1.0, 0.0),
        (working.replace("{7}", "{8}"), 0.0, 0.5),
    ):
        result = loaded.reward_func([PROMPT + response], [PROMPT], ["7"])
        assert result["rewards"] == pytest.approx(0.7 * correct + 0.3 * quality)
        assert result["scores"] == correct == result["extra_logs"]["correct"]
        assert result["extra_logs"]["judge_quality"] == quality
        assert tuple(result["extra_logs"]) == (*LOG_KEYS, *Verdict().logs())
        assert all(isinstance(value, float) for value in result["extra_logs"].values())


ANALYSIS = "<|channel|>analysis<|message|>"
# Two "=" in each: half of the best score from the server.
WITHOUT_ANSWER = (
    ANALYSIS + "3+4=7, 7=7, so \\boxed{7",
    RIGHT.replace("3+4", "3+4=7, 7=7").replace("{7}", "{}"),
    "<think>3+4=7, 7=7 and \\boxed{7}",
    "3+4=7, 7=7",
)
EMPTY = ("", " \n\t\u200b", "<|channel|>", ANALYSIS + " \u200b\n",
         ANALYSIS + "<|end|><|start|>assistant<|channel|>final<|message|><|return|>",
         "<|channel|>final <|constrain|>json<|message|>")  # fmt: skip


@pytest.mark.parametrize(("unfinished", "quality"), [("1", 0.5), ("0", 0.0)])
def test_a_response_without_an_answer_earns_its_reasoning_and_an_empty_one_is_not_sent(
    serve, load, unfinished: str, quality: float
) -> None:
    server = serve()
    loaded = load(server, JUDGE_UNFINISHED=unfinished)
    for response, earned in (*((each, quality) for each in WITHOUT_ANSWER), *((each, 0.0) for each in EMPTY)):
        result = loaded.reward_func([PROMPT + response], [PROMPT], ["7"])
        assert result["rewards"] == pytest.approx(0.4 * earned) and result["scores"] == 0.0, response
        assert (result["extra_logs"]["answered"], result["extra_logs"]["judge_quality"]) == (0.0, earned)
    assert len(server.requests) == (len(WITHOUT_ANSWER) if quality else 0)


def test_evaluations_and_samples_that_were_not_graded_are_never_judged(serve, load) -> None:
    server = serve()
    labels = [json.dumps({"answer": "7", "split": "eval"}), ""]
    result = load(server).reward_func([PROMPT + RIGHT] * 2, [PROMPT] * 2, labels)
    assert result["rewards"][0] == 1.0 and math.isnan(result["rewards"][1]) and server.requests == []
    assert result["extra_logs"]["judge_failed"] == [0.0, 0.0] and result["extra_logs"]["reward_error"] == [0.0, 1.0]


@pytest.mark.parametrize("policy", ["correctness", "mean_quality"])
@pytest.mark.parametrize(
    ("key", "changes"),
    [(None, {}), (KEY, {"JUDGE_TRIES": "many"}), (KEY, {"JUDGE_BASE_URL": "http://elsewhere.example"})],
    ids=["no key", "no number", "no address"],
)
def test_without_a_key_or_good_settings_a_worker_goes_on(load, caplog, policy, key, changes) -> None:
    """The preflight refuses both; a worker that joined a cluster may lack the key all the same."""
    result = load(None, key, JUDGE_FALLBACK=policy, **changes).reward_func(
        [PROMPT + RIGHT, PROMPT + WRONG], [PROMPT] * 2, ["7", "7"]
    )
    assert result["rewards"] == pytest.approx([math.nan] * 2 if policy == "mean_quality" else [1.0, 0.0], nan_ok=True)
    assert result["scores"] == [1.0, 0.0] and result["extra_logs"]["judge_failed"] == [1.0, 1.0]
    assert len([record for record in caplog.records if "could not be judged" in record.message]) == 1


@pytest.mark.parametrize(
    "changes", [{"JUDGE": "0"}, {"JUDGE_MODELS": " "}, {"CORRECTNESS_WEIGHT": "1", "QUALITY_WEIGHT": "0"}]
)
def test_without_a_judge_the_reward_is_correctness(load, changes) -> None:
    result = load(None, **changes).reward_func([PROMPT + RIGHT], [PROMPT], ["7"])
    assert result["rewards"] == 1.0 and tuple(result["extra_logs"]) == LOG_KEYS


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
