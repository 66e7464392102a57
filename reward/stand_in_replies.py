"""Answers of the stand-in for Gemini, good or bad: a count of "=" in the form that the request asks for."""

import json
import re
from typing import Any

_RESPONSE = re.compile(r"<response-([0-9a-f]+)>\n(.*)\n</response-\1>", re.DOTALL)
_CHARS_PER_TOKEN = 4


def prompt_tokens(body: dict[str, Any]) -> int:
    """Return how many tokens the stand-in counts for a request."""
    return len(text_of(body)) // _CHARS_PER_TOKEN + 1


def text_of(body: dict[str, Any]) -> str:
    """Return the text of the contents of a request."""
    return "".join(part.get("text", "") for content in body["contents"] for part in content["parts"])


def answer(body: dict[str, Any], offset: int = 0) -> str:
    """Return the text of a good reply: JSON for the schema of the request; without one, the boxed count of "=".

    Args:
        offset: is added to every number, to leave its range.
    """
    schema = body.get("generationConfig", {}).get("responseSchema")
    if not schema:
        return f"This is the local stand-in for Gemini, which counts. \\boxed{{{text_of(body).count('=')}}}"
    match = _RESPONSE.search(text_of(body))
    count = (match[2] if match else "").count("=")
    values: dict[str, Any] = {}
    for name, form in schema.get("properties", {}).items():
        if form.get("type") in ("INTEGER", "NUMBER"):
            low, high = (int(form.get(bound, default)) for bound, default in (("minimum", 0), ("maximum", 10)))
            values[name] = max(low, min(high, count)) + offset * (high - low + 1)
        else:
            values[name] = "stand-in"
    return json.dumps(values)


def reply(body: dict[str, Any], model: str, text: str | None = None, reason: str = "STOP") -> dict[str, Any]:
    """Return the answer of the server to a request: a good one, unless `text` or `reason` say something else."""
    text = answer(body) if text is None else text
    return {
        "candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": reason, "index": 0}],
        "usageMetadata": {
            "promptTokenCount": prompt_tokens(body),
            "candidatesTokenCount": len(text) // _CHARS_PER_TOKEN + 1,
        },
        "modelVersion": f"stand-in-for-{model}",
    }


def bad_reply(kind: str, body: dict[str, Any], model: str) -> dict[str, Any]:
    """Return a bad answer with status 200, by the kind of fault.

    Raises:
        ValueError: for an unknown kind.
    """
    if kind == "blocked":
        usage = {"promptTokenCount": prompt_tokens(body)}
        return {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": usage}
    if kind == "filtered":
        return {"candidates": [{"finishReason": "SAFETY", "index": 0}]}
    if kind == "cut":
        return reply(body, model, answer(body)[:-5], "MAX_TOKENS")
    if kind == "empty":
        return reply(body, model, "")
    if kind == "not json":
        return reply(body, model, "A score of 4, I would say.")
    if kind == "out of range":
        return reply(body, model, answer(body, offset=1))
    raise ValueError(f"the stand-in knows no fault {kind!r}")
