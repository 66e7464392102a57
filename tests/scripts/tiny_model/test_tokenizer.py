"""Tokenizer and chat template of the tiny model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from scripts.tiny_model import tokenizer


@pytest.fixture(scope="module")
def tiny_tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.write_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_tokenizer_encodes_and_decodes_any_text(tiny_tokenizer, text):
    ids = tiny_tokenizer(text, add_special_tokens=False).input_ids
    assert max(ids, default=0) < len(tiny_tokenizer)
    decoded = tiny_tokenizer.decode(ids)
    assert decoded == text


def test_digits_words_and_special_tokens_are_single_tokens(tiny_tokenizer):
    assert len(tiny_tokenizer("1234567890", add_special_tokens=False).input_ids) == 10
    for word in tokenizer.WORDS:
        assert len(tiny_tokenizer(word, add_special_tokens=False).input_ids) == 1, word
        assert len(tiny_tokenizer(" " + word, add_special_tokens=False).input_ids) == 1, word
    for token in tokenizer.SPECIAL_TOKENS:
        ids = tiny_tokenizer(token, add_special_tokens=False).input_ids
        assert ids == [tiny_tokenizer.convert_tokens_to_ids(token)]
        assert tiny_tokenizer.decode(ids, skip_special_tokens=True) == ""


def test_chat_template_writes_harmony(tiny_tokenizer):
    user = {"role": "user", "content": "What is 1 plus 2?"}
    prompt = tiny_tokenizer.apply_chat_template([user], tokenize=False, add_generation_prompt=True)
    assert len(tiny_tokenizer(prompt, add_special_tokens=False).input_ids) <= 60
    answer = {"role": "assistant", "thinking": "1+2=3", "content": "3"}
    talk = [{"role": "system", "content": "Be brief."}, user, answer]
    assert tiny_tokenizer.apply_chat_template(talk, tokenize=False, reasoning_effort="high") == (
        "<|start|>system<|message|>Reasoning: high\nValid channels: analysis, final<|end|>"
        "<|start|>developer<|message|># Instructions\n\nBe brief.<|end|>"
        "<|start|>user<|message|>What is 1 plus 2?<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>1+2=3<|end|>"
        "<|start|>assistant<|channel|>final<|message|>3<|return|>"
    )
    # A past turn loses its reasoning and ends with <|end|>, as harmony asks.
    past = tiny_tokenizer.apply_chat_template([*talk, user], tokenize=False, add_generation_prompt=True)
    assert "1+2=3" not in past and "<|channel|>final<|message|>3<|end|><|start|>user" in past
