"""Every kind of answer and fault that a server can give, and the reward, calls and models that follow."""

import gzip
import json
import math

import pytest

from reward import chain

from .gemini_server import SCORES, Answer, as_json, error, says
from .harmony import PROMPT, RIGHT

GOOD = json.dumps(SCORES)
USAGE = {"promptTokenCount": 100, "candidatesTokenCount": 20, "thoughtsTokenCount": 7}


def score(text: str) -> Answer:
    return says(GOOD.replace("1", text))


def quota(name: str, value: str) -> dict:
    return {"violations": [{"quotaId": name, "quotaValue": value}]}


# Whoever has these judges.
JUDGEMENTS = {
    "good": says(GOOD),
    "with thoughts": as_json({"candidates": [{"content": {"parts": [{"text": "hm", "thought": True}, {"text": GOOD}]},
                                              "finishReason": "STOP"}]}),
    "compressed": Answer(200, gzip.compress(says(GOOD).body), {"Content-Encoding": "gzip"}),
    "one field too many": says(GOOD[:-1] + ', "comment": "fine"}'),
    "negative counts": says(GOOD, usageMetadata={"promptTokenCount": -5, "candidatesTokenCount": -2}),
}  # fmt: skip
# The same model is asked again.
AGAIN = {
    "429 with a delay": error(429, delay="0.01s"),
    "429 with a header": Answer(429, b"{}", {"Retry-After": "0.01"}),
    "500": error(500), "502, and no JSON": Answer(502, b"<html>"), "503 with a delay": error(503, delay="0.01s"),
    "408": error(408), "504": error(504),
    "close": Answer(fault="close"), "close in body": Answer(fault="close in body"),
    "no JSON": Answer(200, b'{"candidates": [{'), "no object": as_json(["a"]), "null": as_json(None),
    "nothing": Answer(200), "no text": Answer(200, b"\xff\xfe"),
    "no candidates": as_json({"usageMetadata": USAGE}),
    "no content": as_json({"candidates": [{"finishReason": "STOP"}]}),
    "prose": says("I would say 3."), "fenced": says(f"```json\n{GOOD}\n```"), "empty": says(""),
    "above the range": score("5"), "below the range": score("-1"), "a fraction": score("1.5"), "a float": score("1.0"),
    "a boolean": score("true"), "a text": score('"1"'), "no number": score("null"), "a list": score("[1]"),
    "a missing score": says('{"validity": 4}'),
    "cut": says(GOOD[:20], "MAX_TOKENS"), "cut at the end": says(GOOD, "MAX_TOKENS"),
}  # fmt: skip
# The next model is asked at once.
NEXT = {
    "429 of a day": error(429, QuotaFailure=quota("GenerateRequestsPerDayPerProjectPerModel", "250"), delay="0.01s"),
    "429 of no quota": error(429, QuotaFailure=quota("GenerateRequestsPerMinutePerProjectPerModel-FreeTier", "0")),
    "429 of no quota, said": error(429, "Quota exceeded for metric: requests, limit: 0, model: first"),
    "429 with a delay beyond the deadline": error(429, delay="300s"),
    "400": error(400), "403": error(403), "404": error(404), "418": error(418),
    "a blocked prompt": as_json({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}),
    "a blocked reply": says("", "SAFETY"), "a quotation": says(GOOD, "RECITATION"), "an unknown end": says(GOOD, "NEW"),
}  # fmt: skip
# No model is asked any more.
END = {
    "400 of the key": error(400, ErrorInfo={"reason": "API_KEY_INVALID"}), "401": error(401),
    "a redirect": Answer(307, headers={"Location": "https://elsewhere.example/"}), "another redirect": Answer(304),
}  # fmt: skip
ALL = {
    name: (answer, calls)
    for table, calls in ((JUDGEMENTS, 1), (AGAIN, 2), (NEXT, 1), (END, 1))
    for name, answer in table.items()
}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(chain, "SLACK", 0.0)


@pytest.mark.parametrize("name", ALL)
def test_a_rollout_whose_first_model_answers_like_this(serve, load, patient, name) -> None:
    answer, calls = ALL[name]
    server = serve(lambda number, model: answer if model == "first" else says(GOOD, usageMetadata=USAGE))
    result = load(server).reward_func([PROMPT + RIGHT], [PROMPT], ["7"])
    logs, is_end, is_fallback = result["extra_logs"], name in END, name not in {**JUDGEMENTS, **END}
    assert server.asked == ["first"] * calls + ["second"] * is_fallback
    assert result["rewards"] == pytest.approx(1.0 if is_end else 0.6 + 0.4 * 0.7) and result["scores"] == 1.0
    assert math.isnan(logs["judge_quality"]) if is_end else logs["judge_quality"] == pytest.approx(0.7)
    assert (logs["judge_failed"], logs["judge_fallbacks"]) == (is_end, is_fallback)
    assert logs["judge_calls"] == calls + is_fallback
    assert logs["judge_tokens"] >= (127 if is_fallback else 0) and logs["judge_cached"] == 0.0
