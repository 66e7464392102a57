"""Where thinking ends, by token ids: against references on text, with the tokenizers of gpt-oss and of `</think>`."""

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from grpo.rollout.thinking import (
    Budget,
    delimiter,
)
from grpo.stack.problem import UserError
from scripts.tiny_model.tokenizer import build_tokenizer

HARMONY = build_tokenizer()
THINK = build_tokenizer()
THINK.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in ("<think>", "</think>")])
FORCED = "<|end|><|start|>assistant<|channel|>final<|message|>"
PROMPT = "<|start|>user<|message|>2 + 2<|end|><|start|>assistant"
ANALYSIS = "<|channel|>analysis<|message|>"


def encode_text(text: str, tokenizer: Tokenizer = HARMONY) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def decode_tokens(tokens, tokenizer: Tokenizer = HARMONY) -> str:
    return tokenizer.decode(list(tokens), skip_special_tokens=False)


def make_delimiter(name: str, tokenizer: Tokenizer = HARMONY):
    return delimiter(name, lambda some: encode_text(some, tokenizer))


def watch_response(name: str, prompt: str, response: str, tokenizer: Tokenizer = HARMONY):
    watch = make_delimiter(name, tokenizer).watch(encode_text(prompt, tokenizer))
    for token in encode_text(response, tokenizer):
        watch.feed(token)
    return watch


@pytest.mark.parametrize(
    "name, what",
    [
        ("", "is invalid"),
        (" ", "is invalid"),
        ("Harmony", "Harmony"),
        ("think", "think"),
        # gpt-oss would go on in its analysis, or in a message that is not the final one
        ("Time is up. The answer:", "final message"),
        ("Time is up.<|end|>", "final message"),
        ("<|start|>assistant<|channel|>final<|message|>", "final message"),
        ("<|end|><|start|>assistant<|channel|>commentary<|message|>", "final message"),
        (FORCED + "I think<|end|>", "final message"),
        (FORCED + FORCED, "final message"),
    ],
)
def test_a_delimiter_that_the_tokenizer_cannot_make_is_refused(name, what):
    with pytest.raises(UserError, match=what):
        make_delimiter(name)


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
    assert list(make_delimiter(ENOUGH).tokens) == encode_text(ENOUGH)
    watch = watch_response(ENOUGH, PROMPT, response)
    assert watch.closed == (rest == "")
    assert decode_tokens(watch.rest()) == rest
    assert watch_response(ENOUGH, PROMPT, response + rest).closed


def test_the_own_end_of_a_model_with_think_tokens_is_recognized_without_the_inserted_text():
    enough = "Time is up.\n</think>\n\nThe answer"
    assert watch_response(enough, "2 + 2<think>", "so\n</think>4", THINK).closed
    open_ = watch_response(enough, "2 + 2<think>", "so", THINK)
    assert not open_.closed and decode_tokens(open_.rest(), THINK) == enough
    old = "<think>so</think>4\n2 + 2"  # thinking of an earlier turn
    assert not watch_response(enough, old, "so", THINK).closed


def test_harmony_requires_its_special_tokens():
    with pytest.raises(UserError, match="harmony"):
        delimiter("harmony", lambda some: [1, 2, 3])


@pytest.mark.parametrize(
    ("prompt", "response", "rest"),
    [
        # the response begins in the middle of a header
        (PROMPT, "", "<|channel|>final<|message|>"),
        (PROMPT, "<|channel|>", "final<|message|>"),
        (PROMPT, "<|channel|>final", "<|message|>"),
        (PROMPT, "<|channel|>analysis", "<|message|>" + FORCED),
        (PROMPT, "<|channel|>commentary to=functions.f", "<|message|>" + FORCED),
        (PROMPT, ANALYSIS, FORCED),
        (PROMPT, ANALYSIS + "so", FORCED),
        # the delimiter, cut at each of its tokens
        (PROMPT, ANALYSIS + "so<|end|>", "<|start|>assistant<|channel|>final<|message|>"),
        (PROMPT, ANALYSIS + "so<|end|><|start|>", "assistant<|channel|>final<|message|>"),
        (PROMPT, ANALYSIS + "so<|end|><|start|>assistant", "<|channel|>final<|message|>"),
        (PROMPT, ANALYSIS + "so<|end|><|start|>assistant<|channel|>", "final<|message|>"),
        (PROMPT, ANALYSIS + "so<|end|><|start|>assistant<|channel|>final", "<|message|>"),
        (PROMPT, ANALYSIS + "so<|channel|>", "final<|message|>"),
        # a second thought
        (PROMPT, ANALYSIS + "so<|end|><|start|>assistant<|channel|>analysis", "<|message|>" + FORCED),
        (PROMPT, ANALYSIS + "so<|end|><|start|>assistant" + ANALYSIS + "yes", FORCED),
        # prompts that have begun the thinking, or are plain text
        (PROMPT + ANALYSIS, "", FORCED),
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
        (PROMPT, ANALYSIS + "so<|end|><|start|>assistant<|channel|>final<|message|>4"),
        (PROMPT, ANALYSIS + "so<|end|><|start|>assistant<|channel|>final<|constrain|>json<|message|>"),
        (PROMPT, ANALYSIS + "so<|end|><|start|>assistant<|channel|>commentary<|message|>I will"),
        (PROMPT, ANALYSIS + "so<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>"),
        (PROMPT, ANALYSIS + "so<|end|><|start|>assistant to=functions.f<|channel|>commentary<|message|>"),
        (PROMPT, "<|channel|>analysis to=python<|message|>"),
        (PROMPT, "<|message|>4"),
        (PROMPT + "<|channel|>final<|message|>", ""),
        (PROMPT + "<|channel|>final<|message|>The", " answer"),
    ],
)
def test_harmony_thinking_ends_when_the_assistant_addresses_others(prompt, response):
    assert watch_response("harmony", prompt, response).closed


def test_a_delimiter_spelled_in_text_does_not_count():
    # The characters, as ordinary tokens.
    spelled = [token for part in re.findall(".", FORCED) for token in encode_text(part)]
    watch = make_delimiter("harmony").watch(encode_text(PROMPT + ANALYSIS))
    for token in spelled:
        watch.feed(token)
    assert decode_tokens(spelled) == FORCED and not watch.closed


MARKS = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "assistant", "analysis", "final", "so"]
SOME = st.lists(st.sampled_from(MARKS), max_size=16)
HEADER = re.compile(r"<\|(?:start|channel)\|>((?!<\|(?:message|start)\|>).)*<\|message\|>")
THINKING = ("<|start|>assistant" + ANALYSIS, ANALYSIS)


@given(SOME)
def test_harmony_is_read_as_its_text_is(words):
    response = "".join(words)
    headers = [match[0] for match in HEADER.finditer(response)]
    watch = watch_response("harmony", "2 + 2", response)
    assert watch.closed == any(header not in THINKING for header in headers)
    again = watch_response("harmony", "2 + 2", response + decode_tokens(watch.rest()))
    assert again.closed and len(watch.rest()) <= len(encode_text(FORCED)) + 1


@pytest.mark.parametrize("tokens", [*product((1, 2), repeat=3), (1, 1, 2, 1, 1, 1), (1,), (1, 2, 1, 2, 3)])
@given(response=st.lists(st.integers(1, 3), max_size=14), prompt=st.lists(st.integers(1, 3), max_size=4))
def test_a_sequence_of_tokens_is_found_at_any_position(tokens, response, prompt):
    size = len(tokens)
    watch = delimiter("text", lambda some: list(tokens) if some == "text" else [0, 0]).watch(prompt)
    ended = tuple(prompt[-size:]) == tokens
    whole = [*prompt[max(0, len(prompt) - size + 1) :], *response]
    is_spelled = any(tuple(whole[start : start + size]) == tokens for start in range(len(whole)))
    for token in response:
        watch.feed(token)
    assert watch.closed == (is_spelled or ended)
    if not watch.closed:
        longest = max(size_ for size_ in range(size) if tuple(whole[len(whole) - size_ :]) == tokens[:size_])
        assert tuple(watch.rest()) == tokens[longest:]


@pytest.mark.parametrize(
    ("name", "prompt", "rest"),
    [
        ("think", "<think>\n", "</think>"),
        ("think", "a</think>b<think>", "</think>"),  # the delimiter of an earlier turn
        ("think", "<think>\n\n</think>\n\n", None),  # a template that switches thinking off
        ("think", "<think></think>", None),
        ("\n\n</think>\n\n", "<think>\n\n", "</think>\n\n"),
        ("\n\n</think>\n\n", "<think>\n\n</think>\n\n", None),
    ],
)
def test_a_prompt_may_have_begun_or_ended_the_thinking(name, prompt, rest):
    watch = watch_response(name, prompt, "", THINK)
    assert watch.closed == (rest is None)
    assert decode_tokens(watch.rest(), THINK) == (rest or "")


@given(st.integers(0, 30), st.integers(2, 30), st.integers(0, 80), st.integers(1, 9))
def test_the_answer_keeps_its_budget_and_the_thinking_shrinks(thinking, answer, room, size):
    if room < size + 2:
        with pytest.raises(ValueError, match="prompt"):
            Budget(thinking, answer).within(room, size)
        return
    fitted = Budget(thinking, answer).within(room, size)
    assert 0 <= fitted.thinking <= thinking and 2 <= fitted.answer <= answer
    assert fitted.thinking + size + fitted.answer <= room
    if fitted.answer < answer:
        assert fitted.thinking == 0
    if fitted.thinking < thinking:
        assert fitted.thinking + size + fitted.answer == room


@pytest.mark.parametrize("thinking, answer", [(-1, 5), (5, 1), (5, 0)])
def test_invalid_budgets_are_refused(thinking, answer):
    with pytest.raises(ValueError):
        Budget(thinking, answer)
