"""Secrets are removed in every spelling, and nothing else is."""

import base64
import json
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.stack.secrets import is_secret, redact, spellings

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


def test_secrets_are_recognized_by_whole_words() -> None:
    assert all(map(is_secret, ["HF_TOKEN", "GEMINI_API_KEY", "DB_PASSWORD", "MY_SECRET", "OPENAI_APIKEY"]))
    assert not any(map(is_secret, ["TIKTOKEN_ENCODINGS_BASE", "TOKENIZERS_PARALLELISM", "KEYBOARD", "MONKEY"]))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("true /a/long/folder 012345678", "true /a/long/folder 012345678"),
        ("token 0123456789.", "token <A_TOKEN>."),
        ("abc0123456789def 0123456789", "<B_TOKEN> <A_TOKEN>"),  # one is inside the other
    ],
)
def test_whole_secrets_go_and_all_else_stays(monkeypatch: pytest.MonkeyPatch, text: str, left: str) -> None:
    values = {"A_TOKEN": "0123456789", "B_TOKEN": "abc0123456789def", "OTHER_TOKEN": "true"}
    for name, value in (values | {"TIKTOKEN_DIR": "/a/long/folder"}).items():
        monkeypatch.setenv(name, value)
    assert redact(text) == left


@given(st.binary(max_size=9), st.text("abcXYZ019+/=", min_size=8, max_size=24), st.binary(max_size=9))
def test_base64_of_any_surroundings_contains_a_spelling(before: bytes, value: str, after: bytes) -> None:
    encoded = base64.b64encode(before + value.encode() + after).decode()
    assert any(spelling in encoded for spelling in list(spellings(value))[5:])
