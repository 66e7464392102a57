"""The reward function under OpenRLHF's contract: loaded by path, one sample a call, never raising."""

import json
import logging
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reward.answers import LabelError, parse_label
from reward.reward_func import LOG_KEYS, extract_response, reward_func

from .harmony import PROMPT, RIGHT, UNFINISHED, WRONG


def reward_one(query: str, prompt: str = PROMPT, label: object = "7") -> dict[str, float]:
    result = reward_func([query], [prompt], [label])
    assert repr(result["rewards"]) == repr(result["scores"]) == repr(result["extra_logs"]["correct"])  # nan == nan
    logs = result["extra_logs"]
    assert logs.pop("reward_seconds") >= 0
    return logs


def test_correct_wrong_and_unfinished() -> None:
    for response, correct, answered in ((RIGHT, 1.0, 1.0), (WRONG, 0.0, 1.0), (UNFINISHED, 0.0, 0.0)):
        logs = {"correct": correct, "answered": answered, "has_final": answered, "reward_error": 0.0}
        assert reward_one(PROMPT + response) == logs
    assert reward_one(PROMPT + RIGHT, label=json.dumps({"answer": "007", "split": "eval"}))["correct"] == 1.0
    result = reward_func([PROMPT + RIGHT, PROMPT + WRONG], [PROMPT] * 2, ["7", "7"])
    assert result["rewards"] == [1.0, 0.0] and result["extra_logs"]["answered"] == [1.0, 1.0]
    assert reward_func([], [], [])["rewards"] == []
    short = reward_func([PROMPT + RIGHT] * 2, [PROMPT], ["7", "7"])
    assert short["extra_logs"]["reward_error"] == [0.0, 1.0], "lists of different lengths"


def test_a_formula_of_the_prompt_is_no_answer() -> None:
    copied = RIGHT.replace("boxed{7}", "boxed{3+4}")
    assert reward_one(PROMPT + copied)["correct"] == 0.0 and reward_one(PROMPT + copied)["answered"] == 1.0
    assert reward_one(PROMPT + copied, label="3+4")["correct"] == 1.0
    other = PROMPT.replace("3 + 4", "5 + 2")
    assert reward_one(other + copied, other)["correct"] == 1.0


def test_as_openrlhf_loads_and_reads_it(load) -> None:
    """Loaded as SingleTurnAgentExecutor does; values used as _process_response_into_experience does."""
    loaded = load(None, JUDGE="0")
    for response, expected in ((RIGHT, 1.0), (WRONG, 0.0)):
        info = loaded.reward_func([PROMPT + response], [PROMPT], ["7"])
        score = info.get("scores") or info.get("rewards")  # upstream's expression
        for value in (info["rewards"], score, *info["extra_logs"].values()):
            assert torch.tensor([value]).shape == (1,)
        assert torch.tensor([score]).item() == expected


def test_a_prompt_cut_or_changed_by_decoding() -> None:
    assert all(extract_response(PROMPT[cut:] + RIGHT, PROMPT) == RIGHT for cut in (1, 20, 60, 90))
    prompt = "x" * 5000 + PROMPT
    changes = prompt[3000:], prompt.replace("x", "\ufffd", 3), "  " + prompt, prompt[:-400].upper() + prompt[-400:]
    assert all(extract_response(changed + RIGHT, prompt) == RIGHT for changed in changes)


def test_a_prompt_whose_end_was_changed_is_found_by_its_roles() -> None:
    prompt = PROMPT.replace("What is", "What  is")
    assert extract_response(PROMPT + RIGHT, prompt) == RIGHT
    assert reward_one(PROMPT + RIGHT, prompt)["correct"] == 1.0
    two_finals = RIGHT + "<|start|>assistant<|channel|>analysis<|message|>hm"
    assert extract_response(PROMPT + two_finals, prompt) == two_finals


def test_an_answer_in_the_prompt_is_not_the_models() -> None:
    shots = PROMPT + RIGHT.replace("<|return|>", "<|end|>") + PROMPT
    assert extract_response(shots + UNFINISHED, shots) == UNFINISHED
    assert extract_response(shots[10:] + UNFINISHED, shots) == UNFINISHED
    assert reward_one(shots[10:] + UNFINISHED, shots)["correct"] == 0.0
    assert reward_one(shots.replace("Box", "box") + UNFINISHED, shots)["correct"] == 0.0


def test_a_response_that_quotes_the_prompt_is_kept_whole() -> None:
    quoting = "<|channel|>final<|message|>You asked: " + PROMPT + " \\boxed{7}<|return|>"
    assert extract_response(PROMPT + quoting, PROMPT) == quoting
    assert extract_response(PROMPT[5:] + quoting, PROMPT) == quoting


def test_a_prompt_that_opens_the_message_further() -> None:
    final = PROMPT + "<|channel|>final<|message|>"
    assert reward_one(final + "It is \\boxed{7}<|return|>", final)["correct"] == 1.0
    analysis = PROMPT + "<|channel|>analysis<|message|>"
    assert reward_one(analysis + "It is \\boxed{7}", analysis)["has_final"] == 0.0


def test_plain_text_prompts() -> None:
    assert reward_one("Q: 3+4? A: \\boxed{7}", "Q: 3+4? A:")["correct"] == 1.0
    assert reward_one("\\boxed{7}", "")["correct"] == 1.0


BAD = ("", "  ", None, [], {"split": "eval"}, '{"answer": null}', '{"answer": "7", "split": "test"}')


@pytest.mark.parametrize("label", BAD)
def test_a_bad_label_is_an_error_not_a_wrong_answer(label: object) -> None:
    logs = reward_one(PROMPT + RIGHT, label=label)
    assert logs.pop("reward_error") == 1.0
    assert all(math.isnan(value) for value in logs.values())


def test_labels() -> None:
    assert parse_label("033") == ("033", "train")
    assert parse_label(33) == ("33", "train")
    assert parse_label("{1,2}") == ("{1,2}", "train")
    assert parse_label('{"answer": 33, "split": "eval"}') == ("33", "eval")
    assert parse_label({"answer": "33"}) == ("33", "train")
    with pytest.raises(LabelError) as refused:
        parse_label({"answer": "33", "split": "validation"})
    assert "split" in refused.value.what and "train, eval" in refused.value.remedy


def test_a_response_that_cannot_be_found_is_an_error_logged_once(load, caplog: pytest.LogCaptureFixture) -> None:
    loaded = load(None, JUDGE="0")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            result = loaded.reward_func(["something else \\boxed{7}"], ["another prompt"], ["7"])
            assert result["extra_logs"]["reward_error"] == 1.0
    assert len(caplog.records) == 1
    assert "the response is unknown" in caplog.text


ANYTHING = st.none() | st.text(max_size=60) | st.integers() | st.just(PROMPT) | st.just(PROMPT + RIGHT)


@given(query=ANYTHING, prompt=ANYTHING, label=ANYTHING)
def test_nothing_raises_and_the_keys_are_always_the_same(query: object, prompt: object, label: object) -> None:
    logs = reward_func([query], [prompt], [label])["extra_logs"]  # type: ignore[list-item]
    assert tuple(logs) == LOG_KEYS
    assert all(isinstance(value, float) for value in logs.values())
    graded = logs.pop("reward_error") == 0.0
    assert logs.pop("reward_seconds") >= 0
    assert all(math.isfinite(value) == graded for value in logs.values())
