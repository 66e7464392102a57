"""Only marker tokens count as markers: spelled-out markers open no message. Tokens are the tiny model's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.rollout.response_text import BREAK, decode_tokens
from reward.answers import final_message, grade
from scripts.tiny_model.tokenizer import write_tokenizer

HEADER = "<|channel|>final<|message|>"
MARKERS = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>", "<|constrain|>"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


def encode_text(tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def spell_text(tokenizer, text: str) -> list[int]:
    """Ordinary tokens that stand for a text with markers: a name's characters come from different calls."""
    tokens = [token for character in text for token in encode_text(tokenizer, character)]
    assert not set(tokens) & set(tokenizer.added_tokens_decoder) and tokenizer.decode(tokens) == text
    return tokens


@pytest.mark.parametrize("inside", [HEADER, f"<|end|><|start|>assistant{HEADER}", f"<|channel|><|end|>{HEADER}"])
def test_spelled_out_header_does_not_open_a_final_message(tokenizer, inside):
    analysis = encode_text(tokenizer, "<|channel|>analysis<|message|>2+5")
    answer = encode_text(tokenizer, r"\boxed{7}")
    wrong = decode_tokens(tokenizer, [*analysis, *spell_text(tokenizer, inside), *answer])
    assert final_message(wrong) is None and not grade(wrong, "7").correct
    right = decode_tokens(
        tokenizer, [*analysis, *encode_text(tokenizer, f"<|end|><|start|>assistant{HEADER}"), *answer]
    )
    assert BREAK not in right and grade(right, "7").correct
    tokens = [*encode_text(tokenizer, HEADER), *spell_text(tokenizer, "<|end|>"), *answer]
    assert grade(decode_tokens(tokenizer, tokens), "7").correct, "a spelled marker ends no message either"


@given(st.lists(st.one_of(st.sampled_from(MARKERS), st.text("ab<|>é∑ 1\n\\{}", max_size=12)), max_size=12))
def test_text_is_the_decoded_text_except_for_breaks(tokenizer, parts):
    tokens = encode_text(tokenizer, "".join(parts))
    text = decode_tokens(tokenizer, tokens)
    assert text.replace(BREAK, "") == tokenizer.decode(tokens, skip_special_tokens=False)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([*MARKERS, "final", "x"])), max_size=12))
def test_text_has_as_many_markers_as_marker_tokens(tokenizer, parts):
    tokens = []
    for is_token, part in parts:
        tokens += encode_text(tokenizer, part) if is_token else spell_text(tokenizer, part)
    text = decode_tokens(tokenizer, tokens)
    for marker in MARKERS:
        [token] = encode_text(tokenizer, marker)
        assert text.count(marker) == tokens.count(token)
