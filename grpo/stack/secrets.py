"""Which environment variables hold secrets, judged by their names, and texts without their values."""

import base64
import json
import os
import re
import urllib.parse
from collections.abc import Iterator

SECRET_WORDS = {
    *("KEY", "KEYS", "APIKEY", "TOKEN", "TOKENS", "SECRET", "SECRETS", "AUTH"),
    *("PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS"),
}


def is_secret(name: str) -> bool:
    """Return whether a variable's name contains a word for a secret: HF_TOKEN does, TIKTOKEN_DIR does not."""
    return not SECRET_WORDS.isdisjoint(re.split(r"[^A-Z]+", name.upper()))


def secrets(environ: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables that hold secrets; a value under 8 characters counts as a word."""
    variables = dict(os.environ) if environ is None else environ
    return {name: value for name, value in variables.items() if is_secret(name) and len(value) >= 8}


def redact(text: str) -> str:
    """Return `text` with the values of secret environment variables replaced by their names, however they are spelled.

    See :func:`spellings`.
    """
    known = {spelling: name for name, value in secrets().items() for spelling in spellings(value)}
    for spelling in sorted(known, key=len, reverse=True):  # a value may contain another one
        text = text.replace(spelling, f"<{known[spelling]}>")
    return text


def spellings(value: str) -> Iterator[str]:
    """Yield a value as it is, as JSON and Python escape it, as URLs quote it, in hex and in base64.

    In base64, a text reads in one of three ways, by its place in what is encoded. The characters at its ends depend on
    its neighbors, too, and are left out.
    """
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(json.dumps(value)[1:-1])[1:-1]  # JSON within JSON
    yield repr(value)[1:-1]
    yield value.encode().hex()
    yield value.encode().hex().upper()
    yield urllib.parse.quote(value, safe="")
    yield urllib.parse.quote_plus(value)
    for before in range(3):
        first, last = -(-before * 4 // 3), (before + len(value.encode())) * 8 // 6
        standard = base64.b64encode(b"\0" * before + value.encode()).decode()[first:last]
        yield standard
        yield standard.replace("+", "-").replace("/", "_")
