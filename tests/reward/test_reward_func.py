"""The reward function under OpenRLHF's contract: loaded by path, one sample a call, never raising."""

import importlib.util
import json
import logging
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reward.reward_func as module
from reward import settings
from reward.judge import Verdict
from reward.labels import parse_label
from reward.reward_func import LOG_KEYS, response_of, reward_func
from reward.stand_in import Fault, StandIn
from reward.stand_in_replies import text_of

from .recorder import Recorder, redirector

FILE = Path(module.__file__)
PROMPT = (
    "<|start|>system<|message|>Think.<|end|><|start|>user<|message|>What is 3 + 4? Box it.<|end|><|start|>assistant"
)
RIGHT = "<|channel|>analysis<|message|>3+4<|end|><|start|>assistant<|channel|>final<|message|>\\boxed{7}<|return|>"
WRONG = RIGHT.replace("{7}", "{8}")
UNFINISHED = "<|channel|>analysis<|message|>maybe \\boxed{7}"


def one(query: str, prompt: str = PROMPT, label: object = "7") -> dict[str, float]:
    result = reward_func([query], [prompt], [label])
    assert repr(result["rewards"]) == repr(result["scores"]) == repr(result["extra_logs"]["correct"])  # nan == nan
    logs = result["extra_logs"]
    assert logs.pop("reward_seconds") >= 0
    return logs


def test_correct_wrong_and_unfinished() -> None:
    assert one(PROMPT + RIGHT) == {"correct": 1.0, "answered": 1.0, "has_final": 1.0, "reward_error": 0.0}
    assert one(PROMPT + WRONG) == {"correct": 0.0, "answered": 1.0, "has_final": 1.0, "reward_error": 0.0}
    assert one(PROMPT + UNFINISHED) == {
        "correct": 0.0,
        "answered": 0.0,
        "has_final": 0.0,
        "reward_error": 0.0,
    }
    assert one(PROMPT + RIGHT, label=json.dumps({"answer": "007", "split": "eval"}))["correct"] == 1.0


def test_as_openrlhf_loads_and_reads_it() -> None:
    """Loaded as SingleTurnAgentExecutor does; values used as _process_response_into_experience does."""
    spec = importlib.util.spec_from_file_location("reward_func", FILE)
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    for response, expected in ((RIGHT, 1.0), (WRONG, 0.0)):
        info = loaded.reward_func([PROMPT + response], [PROMPT], ["7"])
        score = info.get("scores") or info.get("rewards")  # upstream's expression
        for value in (info["rewards"], score, *info["extra_logs"].values()):
            assert torch.tensor([value]).shape == (1,)
        assert torch.tensor([score]).item() == expected


def test_several_samples_give_lists() -> None:
    result = reward_func([PROMPT + RIGHT, PROMPT + WRONG], [PROMPT] * 2, ["7", "7"])
    assert result["rewards"] == [1.0, 0.0]
    assert result["extra_logs"]["answered"] == [1.0, 1.0]
    assert reward_func([], [], [])["rewards"] == []


@pytest.mark.parametrize("cut", [1, 20, 60, 90])
def test_a_prompt_cut_at_its_start(cut: int) -> None:
    assert response_of(PROMPT[cut:] + RIGHT, PROMPT) == RIGHT


def test_a_long_prompt_cut_or_changed_by_decoding() -> None:
    prompt = "x" * 5000 + PROMPT
    for changed in (
        prompt[3000:],
        prompt.replace("x", "\ufffd", 3),
        "  " + prompt,
        prompt[:-400].upper() + prompt[-400:],
    ):
        assert response_of(changed + RIGHT, prompt) == RIGHT


def test_a_prompt_whose_end_was_changed_is_found_by_its_roles() -> None:
    prompt = PROMPT.replace("What is", "What  is")
    assert response_of(PROMPT + RIGHT, prompt) == RIGHT
    assert one(PROMPT + RIGHT, prompt)["correct"] == 1.0
    two_finals = RIGHT + "<|start|>assistant<|channel|>analysis<|message|>hm"
    assert response_of(PROMPT + two_finals, prompt) == two_finals


def test_an_answer_in_the_prompt_is_not_the_models() -> None:
    shots = PROMPT + RIGHT.replace("<|return|>", "<|end|>") + PROMPT
    assert response_of(shots + UNFINISHED, shots) == UNFINISHED
    assert response_of(shots[10:] + UNFINISHED, shots) == UNFINISHED
    assert one(shots[10:] + UNFINISHED, shots)["correct"] == 0.0
    assert one(shots.replace("Box", "box") + UNFINISHED, shots)["correct"] == 0.0


def test_a_response_that_quotes_the_prompt_is_kept_whole() -> None:
    quoting = "<|channel|>final<|message|>You asked: " + PROMPT + " \\boxed{7}<|return|>"
    assert response_of(PROMPT + quoting, PROMPT) == quoting
    assert response_of(PROMPT[5:] + quoting, PROMPT) == quoting


def test_a_prompt_that_opens_the_message_further() -> None:
    final = PROMPT + "<|channel|>final<|message|>"
    assert one(final + "It is \\boxed{7}<|return|>", final)["correct"] == 1.0
    analysis = PROMPT + "<|channel|>analysis<|message|>"
    assert one(analysis + "It is \\boxed{7}", analysis)["has_final"] == 0.0


def test_plain_text_prompts() -> None:
    assert one("Q: 3+4? A: \\boxed{7}", "Q: 3+4? A:")["correct"] == 1.0
    assert one("\\boxed{7}", "")["correct"] == 1.0


@pytest.mark.parametrize(
    "label",
    [
        "",
        "  ",
        None,
        [],
        {"split": "eval"},
        '{"answer": null}',
        '{"answer": "7", "split": "test"}',
        '{"split": "eval"}',
    ],
)
def test_a_bad_label_is_an_error_not_a_wrong_answer(label: object) -> None:
    logs = one(PROMPT + RIGHT, label=label)
    assert logs.pop("reward_error") == 1.0
    assert all(math.isnan(value) for value in logs.values())


def test_labels() -> None:
    assert parse_label("033") == ("033", "train")
    assert parse_label(33) == ("33", "train")
    assert parse_label("{1,2}") == ("{1,2}", "train")
    assert parse_label('{"answer": 33, "split": "eval"}') == ("33", "eval")
    assert parse_label({"answer": "33"}) == ("33", "train")
    with pytest.raises(ValueError, match="split"):
        parse_label({"answer": "33", "split": "validation"})


def test_a_response_that_cannot_be_found_is_an_error_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    module._logged_kinds.clear()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert one("something else \\boxed{7}", "another prompt")["reward_error"] == 1.0
    assert len(caplog.records) == 1
    assert "not found" in caplog.text


def test_lists_of_different_lengths_are_errors() -> None:
    result = reward_func([PROMPT + RIGHT, PROMPT + RIGHT], [PROMPT], ["7", "7"])
    assert result["extra_logs"]["reward_error"] == [0.0, 1.0]


ANYTHING = st.none() | st.text(max_size=60) | st.integers() | st.just(PROMPT) | st.just(PROMPT + RIGHT)


@given(query=ANYTHING, prompt=ANYTHING, label=ANYTHING)
def test_nothing_raises_and_the_keys_are_always_the_same(query: object, prompt: object, label: object) -> None:
    logs = reward_func([query], [prompt], [label])["extra_logs"]  # type: ignore[list-item]
    assert tuple(logs) == LOG_KEYS
    assert all(isinstance(value, float) for value in logs.values())
    graded = logs.pop("reward_error") == 0.0
    assert logs.pop("reward_seconds") >= 0
    assert all(math.isfinite(value) == graded for value in logs.values())


# --- With a judge -----------------------------------------------------------------------------------------------------

MODELS = "first second third"
SETTINGS = {
    "JUDGE": "1",
    "JUDGE_MODELS": MODELS,
    "CORRECTNESS_WEIGHT": "0.6",
    "QUALITY_WEIGHT": "0.4",
    "JUDGE_FALLBACK": "correctness",
    "JUDGE_UNFINISHED": "1",
    "JUDGE_TRIES": "1",
    "JUDGE_DEADLINE": "20",
    "JUDGE_CALL_TIMEOUT": "10",
    "JUDGE_RPM": "1000",
    "JUDGE_TPM": "10000000",
    "JUDGE_CONCURRENCY": "8",
}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., ModuleType]:
    """Load reward_func.py by its path, as each engine does, with these settings; variables by name."""

    def begin(server: StandIn | None, **changes: str) -> ModuleType:
        for name, value in (SETTINGS | changes).items():
            monkeypatch.setenv(f"GRPO_{name}", value)
        monkeypatch.setenv("GRPO_RUN_DIR", str(tmp_path))
        for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GRPO_JUDGE_STAND_IN"):
            monkeypatch.delenv(name, raising=False)
        if server:
            monkeypatch.setenv("GRPO_JUDGE_STAND_IN", server.url)
        spec = importlib.util.spec_from_file_location("reward_func", FILE)
        assert spec and spec.loader
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded

    return begin


def test_the_address_is_asked_and_its_redirect_is_not_followed(load, monkeypatch) -> None:
    with Recorder() as foreign, redirector(307, foreign.url) as server, Recorder() as proxy:
        loaded = load(None, JUDGE_BASE_URL=server.url, JUDGE_PROXY="0")
        monkeypatch.setenv("GEMINI_API_KEY", "AIza-not-a-real-key")
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        found = loaded.reward_func([PROMPT + RIGHT], [PROMPT], ["7"])
        assert (foreign.seen, proxy.seen, len(server.seen)) == ([], [], 1)
    assert found["rewards"] == 1.0 and found["extra_logs"]["judge_failed"] == 1.0


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
    assert "3+4=7" in text_of(request.body)


def test_a_response_that_is_cut_anywhere_is_judged_and_earns_the_weight_of_quality_at_most(serve, load) -> None:
    server = serve()
    loaded = load(server)
    whole = RIGHT.replace("3+4", "3+4=7,7=7=7=7=7")
    tokens = re.findall(r"<\|\w+\|>|[^<]", whole)
    for count in range(len(tokens)):
        response = "".join(tokens[:count])
        found = loaded.reward_func([PROMPT + response], [PROMPT], ["7"])
        if not found["extra_logs"]["answered"]:
            assert found["rewards"] == pytest.approx(0.4 * found["extra_logs"]["judge_quality"])
            assert 0.0 <= found["rewards"] <= 0.4
        is_asked = found["extra_logs"]["judge_calls"] + found["extra_logs"]["judge_cached"] == 1
        assert is_asked == (len(response) > len(ANALYSIS)), response


@pytest.mark.parametrize("unfinished", ["0", "1"])
def test_an_empty_response_is_not_sent(serve, load, unfinished: str) -> None:
    server = serve()
    loaded = load(server, JUDGE_UNFINISHED=unfinished)
    for response in EMPTY:
        result = loaded.reward_func([PROMPT + response], [PROMPT], ["7"])
        assert result["rewards"] == 0.0 and result["extra_logs"]["judge_quality"] == 0.0, response
    assert server.requests == []


def test_a_response_without_an_answer_is_not_sent_where_that_is_off(serve, load) -> None:
    server = serve()
    loaded = load(server, JUDGE_UNFINISHED="0")
    for response in WITHOUT_ANSWER.values():
        result = loaded.reward_func([PROMPT + response], [PROMPT], ["7"])
        assert result["rewards"] == 0.0 and result["extra_logs"]["judge_quality"] == 0.0
    assert server.requests == []


@pytest.mark.parametrize(("policy", "expected"), [("correctness", 0.0), ("group", 0.0), ("mean_quality", 0.4 * 0.5)])
def test_a_judge_that_fails_on_a_response_without_an_answer(serve, load, policy: str, expected: float) -> None:
    """The policy says what it gets, as it does for a wrong one; the mean is that of samples without the gold answer."""
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


def test_without_a_key_the_policy_of_the_mean_pays_nobody(load) -> None:
    result = load(None, JUDGE_FALLBACK="mean_quality").reward_func([PROMPT + RIGHT], [PROMPT], ["7"])
    assert math.isnan(result["rewards"]) and result["scores"] == 1.0
    assert result["extra_logs"]["judge_failed"] == 1.0


def test_the_stand_in_goes_by_no_quota(serve, load) -> None:
    """With a quota of one request a minute, the second sample would not be judged before its deadline."""
    responses = [PROMPT + RIGHT.replace("3+4", f"3+4+{number}-{number}") for number in range(4)]
    loaded = load(serve(), JUDGE_RPM="1", JUDGE_TPM="1", JUDGE_DEADLINE="3")
    result = loaded.reward_func(responses, [PROMPT] * 4, ["7"] * 4)
    assert result["extra_logs"]["judge_failed"] == [0.0] * 4


@pytest.mark.parametrize(
    "changes", [{"JUDGE": "0"}, {"JUDGE_MODELS": " "}, {"CORRECTNESS_WEIGHT": "1", "QUALITY_WEIGHT": "0"}]
)
def test_without_a_judge_it_is_correctness_alone(load, changes) -> None:
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
