"""Secrets are removed in every spelling, and nothing else is."""

import base64
import json
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.stack.secrets import redact, spellings

SECRET = "k3y/with+\"odd'\\ characters~?"
WRITERS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "json": json.dumps,
    "json in json": lambda text: json.dumps(json.dumps(text)),
    "hex": lambda text: text.encode().hex(),
    "large hex": lambda text: text.encode().hex().upper(),
    "repr": repr,
    "url": lambda text: urllib.parse.quote(text, safe=""),
    "form": urllib.parse.quote_plus,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "url-safe base64": lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("before", ["", "a", "ab", "abc:"])
def test_a_secret_is_replaced_by_its_name_in_every_spelling(monkeypatch, writer: str, before: str) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", SECRET)
    text = redact("- " + WRITERS[writer](before + SECRET + " and more") + " -")
    assert "<SERVICE_API_KEY>" in text and text.startswith("- ") and text.endswith(" -")
    assert not any(spelling in text for spelling in spellings(SECRET))


def test_other_words_and_short_values_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    monkeypatch.setenv("OTHER_TOKEN", "true")
    monkeypatch.setenv("TIKTOKEN_DIR", "/a/long/folder")
    text = "true /a/long/folder hf_012345678"
    assert redact(text) == text
    assert redact("token hf_0123456789.") == "token <HF_TOKEN>."


def test_a_secret_inside_another_one_leaves_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "0123456789")
    monkeypatch.setenv("B_TOKEN", "abc0123456789def")
    assert redact("abc0123456789def 0123456789") == "<B_TOKEN> <A_TOKEN>"


@given(st.binary(max_size=9), st.text("abcXYZ019+/=", min_size=8, max_size=24), st.binary(max_size=9))
def test_base64_of_any_surroundings_contains_a_spelling(before: bytes, value: str, after: bytes) -> None:
    encoded = base64.b64encode(before + value.encode() + after).decode()
    assert any(spelling in encoded for spelling in list(spellings(value))[5:])
