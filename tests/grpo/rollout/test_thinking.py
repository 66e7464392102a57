"""Where gpt-oss's thinking ends, by token ids: against references on text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.rollout.thinking import Budget, delimiter
from grpo.stack.problem import UserError
from tests.grpo.rollout.replayed_engine import ANALYSIS, TOKENIZER, encode_text
from tests.grpo.rollout.replayed_engine import FINAL as FORCED

PROMPT = "<|start|>user<|message|>2 + 2<|end|><|start|>assistant"


def decode_tokens(tokens) -> str:
    return TOKENIZER.decode(list(tokens), skip_special_tokens=False)


def watch_response(name: str, prompt: str, response: str):
    watch = delimiter(name, encode_text).watch(encode_text(prompt))
    for token in encode_text(response):
        watch.feed(token)
    return watch


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Harmony",
        # gpt-oss would go on in its analysis, or in a message that is not the final one
        "</think>",
        "Time is up.<|end|>",
        "<|start|>assistant<|channel|>final<|message|>",
        "<|end|><|start|>assistant<|channel|>commentary<|message|>",
        FORCED + "I think<|end|>",
        FORCED + FORCED,
    ],
)
def test_a_delimiter_after_which_gpt_oss_would_not_answer_is_refused(name):
    with pytest.raises(UserError, match="final message"):
        delimiter(name, encode_text)


ENOUGH = f"Time is up.{FORCED}The answer"


@pytest.mark.parametrize(
    ("response", "rest"),
    [
        (ANALYSIS + "so", ENOUGH),
        (ANALYSIS + "so<|end|>", "<|start|>assistant<|channel|>final<|message|>The answer"),
        (ANALYSIS + "so<|end|><|start|>assistant<|channel|>", "final<|message|>The answer"),
        (ANALYSIS + "so<|end|><|start|>assistant<|channel|>analysis", "<|message|>" + ENOUGH),
        (ANALYSIS + FORCED + "4", ""),  # the model's own end, which has none of the text
        (ANALYSIS + "so<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>", ""),
    ],
)
def test_a_text_is_inserted_and_the_models_own_end_is_recognized(response, rest):
    assert list(delimiter(ENOUGH, encode_text).tokens) == encode_text(ENOUGH)
    watch = watch_response(ENOUGH, PROMPT, response)
    assert watch.closed == (rest == "")
    assert decode_tokens(watch.rest()) == rest
    assert watch_response(ENOUGH, PROMPT, response + rest).closed


@pytest.mark.parametrize(
    ("prompt", "response", "rest"),
    [
        # the response begins in the middle of a header
        (PROMPT, "", "<|channel|>final<|message|>"),
        (PROMPT, "<|channel|>commentary to=functions.f", "<|message|>" + FORCED),
        (PROMPT, ANALYSIS, FORCED),
        # the delimiter, cut
        (PROMPT, ANALYSIS + "so<|end|>", "<|start|>assistant<|channel|>final<|message|>"),
        (PROMPT, ANALYSIS + "so<|end|><|start|>", "assistant<|channel|>final<|message|>"),
        (PROMPT, ANALYSIS + "so<|end|><|start|>assistant<|channel|>final", "<|message|>"),
        (PROMPT, ANALYSIS + "so<|channel|>", "final<|message|>"),
        # a second thought
        (PROMPT, ANALYSIS + "so<|end|><|start|>assistant" + ANALYSIS + "yes", FORCED),
        # prompts that have begun the thinking, or are plain text
        (PROMPT + "<|channel|>", "", "final<|message|>"),
        ("<|start|>user<|message|>2 + 2<|end|>", "", "<|start|>assistant<|channel|>final<|message|>"),
        ("2 + 2", "so", FORCED),
    ],
)
def test_open_harmony_thinking_lacks_its_end(prompt, response, rest):
    watch = watch_response("harmony", prompt, response)
    assert not watch.closed
    assert decode_tokens(watch.rest()) == rest
    again = watch_response("harmony", prompt, response + rest)
    assert again.closed and again.rest() == []


@pytest.mark.parametrize(
    ("prompt", "response"),
    [
        (PROMPT, "<|channel|>final<|message|>"),
        (PROMPT, ANALYSIS + "so<|end|><|start|>assistant<|channel|>final<|constrain|>json<|message|>"),
        (PROMPT, ANALYSIS + "so<|end|><|start|>assistant to=functions.f<|channel|>commentary<|message|>"),
        (PROMPT, "<|channel|>analysis to=python<|message|>"),
        (PROMPT, "<|message|>4"),
        (PROMPT + "<|channel|>final<|message|>The", " answer"),
    ],
)
def test_harmony_thinking_ends_when_the_assistant_addresses_others(prompt, response):
    assert watch_response("harmony", prompt, response).closed


def test_a_delimiter_spelled_in_text_does_not_count():
    # The characters, as ordinary tokens.
    spelled = [token for part in re.findall(".", FORCED) for token in encode_text(part)]
    watch = delimiter("harmony", encode_text).watch(encode_text(PROMPT + ANALYSIS))
    for token in spelled:
        watch.feed(token)
    assert decode_tokens(spelled) == FORCED and not watch.closed


THINKING = ("<|start|>assistant" + ANALYSIS, ANALYSIS)
MARKS = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "assistant", "analysis", "final", "so", *THINKING]
SOME = st.lists(st.sampled_from(MARKS), max_size=16)
HEADER = re.compile(r"<\|(?:start|channel)\|>((?!<\|(?:message|start)\|>).)*<\|message\|>")


@given(SOME)
def test_harmony_is_read_as_its_text_is(words):
    response = "".join(words)
    headers = [match[0] for match in HEADER.finditer(response)]
    watch = watch_response("harmony", "2 + 2", response)
    assert watch.closed == any(header not in THINKING for header in headers)
    again = watch_response("harmony", "2 + 2", response + decode_tokens(watch.rest()))
    assert again.closed and len(watch.rest()) <= len(encode_text(FORCED)) + 1


@given(st.integers(0, 30), st.integers(2, 30), st.integers(0, 80), st.integers(1, 9))
def test_the_answer_keeps_its_budget_and_the_thinking_shrinks(thinking, answer, room, size):
    if room < size + 2:
        with pytest.raises(ValueError, match="answer"):
            Budget(thinking, answer).within(room, size)
        return
    fitted = Budget(thinking, answer).within(room, size)
    assert 0 <= fitted.thinking <= thinking and 2 <= fitted.answer <= answer
    assert fitted.thinking + size + fitted.answer <= room
    if fitted.answer < answer:
        assert fitted.thinking == 0
    if fitted.thinking < thinking:
        assert fitted.thinking + size + fitted.answer == room
