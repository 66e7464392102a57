"""The reward function with a judge: requests, rewards, and failures of the judge."""

import json
import logging
import math
import re

import pytest

from reward import settings
from reward.judge import Verdict
from reward.reward_func import LOG_KEYS
from reward.stand_in import read_text

from .faulty import Fault
from .harmony import PROMPT, RIGHT, WRONG
from .recorder import Recorder, make_redirector


def test_the_address_is_asked_and_its_redirect_is_not_followed(load, monkeypatch) -> None:
    with Recorder() as foreign, make_redirector(307, foreign.url) as server, Recorder() as proxy:
        loaded = load(None, JUDGE_BASE_URL=server.url, JUDGE_PROXY="0")
        monkeypatch.setenv("GEMINI_API_KEY", "AIza-not-a-real-key")
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        result = loaded.reward_func([PROMPT + RIGHT], [PROMPT], ["7"])
        assert (foreign.seen, proxy.seen, len(server.seen)) == ([], [], 1)
    assert result["rewards"] == 1.0 and result["extra_logs"]["judge_failed"] == 1.0


def test_the_reward_is_the_weighted_sum(serve, load) -> None:
    loaded = load(serve(), CORRECTNESS_WEIGHT="0.7", QUALITY_WEIGHT="0.3")
    working = RIGHT.replace("3+4", "3+4=7,7=7")  # two "=": half of the best score from the stand-in
    for response, correct, quality in (
        (working, 1.0, 0.5),
        (RIGHT, 1.0, 0.0),
        (working.replace("{7}", "{8}"), 0.0, 0.5),
    ):
        result = loaded.reward_func([PROMPT + response], [PROMPT], ["7"])
        assert result["rewards"] == pytest.approx(0.7 * correct + 0.3 * quality)
        assert result["scores"] == correct == result["extra_logs"]["correct"]
        assert result["extra_logs"]["judge_quality"] == quality
        models = settings.from_environment().chain.models
        assert tuple(result["extra_logs"]) == (*LOG_KEYS, *Verdict().logs(models))
        assert sum(result["extra_logs"][f"judge_calls.{model}"] for model in models) == 1


ANALYSIS = "<|channel|>analysis<|message|>"
# Two "=" in each: half of the best score from the stand-in.
WITHOUT_ANSWER = {
    "cut in its analysis": ANALYSIS + "3+4=7, 7=7, so \\boxed{7",
    "boxed in its analysis": ANALYSIS + "3+4=7, 7=7 \\boxed{7}<|end|>",
    "an empty box": RIGHT.replace("3+4", "3+4=7, 7=7").replace("{7}", "{}"),
    "cut in its box": ANALYSIS + "3+4=7<|end|><|start|>assistant<|channel|>final<|message|>As 3+4=7: \\boxed{",
    "cut in its thoughts": "<think>3+4=7, 7=7 and \\boxed{7}",
    "plain text": "3+4=7, 7=7",
}
EMPTY = (
    "",
    " \n\t",
    "\u200b\u2060",
    "<|channel|>",
    "<|channel|>analysis",
    ANALYSIS,
    ANALYSIS + " \u200b\n",
    ANALYSIS + "<|end|><|start|>assistant<|channel|>final<|message|><|return|>",
    "<|start|>assistant" + ANALYSIS + "<|end|><|start|>assistant",
    "<|channel|>final <|constrain|>json<|message|>\u2800",
)


@pytest.mark.parametrize("response", WITHOUT_ANSWER.values(), ids=WITHOUT_ANSWER.keys())
def test_the_reasoning_of_a_response_without_an_answer_is_judged(serve, load, response: str) -> None:
    server = serve()
    result = load(server).reward_func([PROMPT + response], [PROMPT], ["7"])
    assert result["rewards"] == pytest.approx(0.4 * 0.5) and result["scores"] == 0.0
    assert (result["extra_logs"]["answered"], result["extra_logs"]["judge_quality"]) == (0.0, 0.5)
    [request] = server.requests
    assert "3+4=7" in read_text(request.body)


def test_a_response_that_is_cut_anywhere_is_judged_and_earns_the_weight_of_quality_at_most(serve, load) -> None:
    server = serve()
    loaded = load(server)
    whole = RIGHT.replace("3+4", "3+4=7,7=7=7=7=7")
    tokens = re.findall(r"<\|\w+\|>|[^<]", whole)
    for count in range(len(tokens)):
        response = "".join(tokens[:count])
        result = loaded.reward_func([PROMPT + response], [PROMPT], ["7"])
        if not result["extra_logs"]["answered"]:
            assert result["rewards"] == pytest.approx(0.4 * result["extra_logs"]["judge_quality"])
            assert 0.0 <= result["rewards"] <= 0.4
        is_asked = result["extra_logs"]["judge_calls"] + result["extra_logs"]["judge_cached"] == 1
        assert is_asked == (len(response) > len(ANALYSIS)), response


@pytest.mark.parametrize(("unfinished", "responses"), [("1", EMPTY), ("0", (*EMPTY, *WITHOUT_ANSWER.values()))])
def test_a_response_that_is_empty_or_not_to_be_judged_is_not_sent(serve, load, unfinished: str, responses) -> None:
    server = serve()
    loaded = load(server, JUDGE_UNFINISHED=unfinished)
    for response in responses:
        result = loaded.reward_func([PROMPT + response], [PROMPT], ["7"])
        assert result["rewards"] == 0.0 and result["extra_logs"]["judge_quality"] == 0.0, response
    assert server.requests == []


@pytest.mark.parametrize(("policy", "expected"), [("correctness", 0.0), ("group", 0.0), ("mean_quality", 0.4 * 0.5)])
def test_a_judge_that_fails_on_a_response_without_an_answer(serve, load, policy: str, expected: float) -> None:
    """The policy sets its reward, as for a wrong one. The mean covers samples without the gold answer."""
    server = serve(faults=lambda number, model: Fault("blocked") if number > 0 else None)
    loaded = load(server, JUDGE_FALLBACK=policy)
    judged, failed = (
        loaded.reward_func([PROMPT + response], [PROMPT], ["7"])
        for response in (WITHOUT_ANSWER["plain text"], ANALYSIS + "another thought")
    )
    assert judged["rewards"] == pytest.approx(0.4 * 0.5)
    assert failed["extra_logs"]["judge_failed"] == 1.0 and failed["rewards"] == pytest.approx(expected)


def test_evaluations_are_never_judged(serve, load) -> None:
    server = serve()
    label = json.dumps({"answer": "7", "split": "eval"})
    result = load(server).reward_func([PROMPT + RIGHT], [PROMPT], [label])
    assert result["rewards"] == 1.0 and math.isnan(result["extra_logs"]["judge_quality"])
    assert result["extra_logs"]["judge_failed"] == 0.0 and server.requests == []


def test_a_judge_that_fails_is_marked_and_costs_no_sample(serve, load) -> None:
    server = serve(faults=lambda number, model: Fault("blocked"))
    result = load(server).reward_func([PROMPT + RIGHT, PROMPT + WRONG], [PROMPT] * 2, ["7", "7"])
    assert result["rewards"] == [1.0, 0.0], "correctness alone"
    assert result["extra_logs"]["judge_failed"] == [1.0, 1.0]
    assert result["extra_logs"]["judge_calls"] == [3.0, 3.0]
    assert all(math.isnan(value) for value in result["extra_logs"]["judge_quality"])


@pytest.mark.parametrize(
    "changes", [{}, {"JUDGE_TRIES": "many"}, {"JUDGE_FALLBACK": "mercy"}], ids=["no key", "no number", "no policy"]
)
def test_without_a_key_or_good_settings_a_worker_goes_on(load, changes, caplog) -> None:
    """The preflight refuses both; a worker that joined a cluster may lack the key all the same."""
    loaded = load(None, **changes)
    for _ in range(2):
        result = loaded.reward_func([PROMPT + RIGHT], [PROMPT], ["7"])
        assert result["rewards"] == 1.0 and result["extra_logs"]["judge_failed"] == 1.0
    assert len([record for record in caplog.records if "could not be judged" in record.message]) == 1


def test_without_a_key_the_mean_policy_gives_no_reward(load) -> None:
    result = load(None, JUDGE_FALLBACK="mean_quality").reward_func([PROMPT + RIGHT], [PROMPT], ["7"])
    assert math.isnan(result["rewards"]) and result["scores"] == 1.0
    assert result["extra_logs"]["judge_failed"] == 1.0


def test_stand_in_ignores_quotas(serve, load) -> None:
    """With a quota of one request a minute, the second sample would not be judged before its deadline."""
    responses = [PROMPT + RIGHT.replace("3+4", f"3+4+{number}-{number}") for number in range(4)]
    loaded = load(serve(), JUDGE_RPM="1", JUDGE_TPM="1", JUDGE_DEADLINE="3")
    result = loaded.reward_func(responses, [PROMPT] * 4, ["7"] * 4)
    assert result["extra_logs"]["judge_failed"] == [0.0] * 4


@pytest.mark.parametrize(
    "changes", [{"JUDGE": "0"}, {"JUDGE_MODELS": " "}, {"CORRECTNESS_WEIGHT": "1", "QUALITY_WEIGHT": "0"}]
)
def test_without_a_judge_the_reward_is_correctness(load, changes) -> None:
    result = load(None, **changes).reward_func([PROMPT + RIGHT], [PROMPT], ["7"])
    assert result["rewards"] == 1.0 and tuple(result["extra_logs"]) == LOG_KEYS


def test_a_sample_that_was_not_graded_is_not_judged(serve, load) -> None:
    server = serve()
    result = load(server).reward_func([PROMPT + RIGHT], [PROMPT], [""])
    assert math.isnan(result["rewards"]) and result["extra_logs"]["reward_error"] == 1.0 and server.requests == []


def test_the_key_stays_out_of_file_and_log(serve, load, monkeypatch, tmp_path, caplog) -> None:
    key = "AIza-not-a-real-key-0123456789"
    server = serve(faults=lambda number, model: Fault("status", 400, "you said {key}"))
    loaded = load(None)
    monkeypatch.setenv("GEMINI_API_KEY", key)
    monkeypatch.setenv("GRPO_JUDGE_BASE_URL", server.url)
    with caplog.at_level(logging.DEBUG):
        result = loaded.reward_func([PROMPT + RIGHT], [PROMPT], ["7"])
    assert result["extra_logs"]["judge_failed"] == 1.0 and len(server.requests) == 3
    assert key not in caplog.text and "<key>" in caplog.text
    for file in tmp_path.iterdir():
        assert key.encode() not in file.read_bytes()
