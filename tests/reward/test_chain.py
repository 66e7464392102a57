"""Every fault that the stand-in knows, through google-genai's real client, and the request that follows."""

import logging
import statistics
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from reward import chain as module
from reward.chain import Chain
from reward.gemini import CallError, Client, Kind
from reward.stand_in import read_text

from .chains import KEY, Form, fail_first, list_asked_models
from .faulty import Fault, Quota


def test_an_answer_has_text_form_usage_and_model(serve, make_chain):
    server = serve()
    chain = make_chain(server)
    answer = chain.ask("How many?", system="Count.", schema=Form)
    assert answer.reply.parsed == Form(number=0) and answer.reply.text == '{"number": 0}'
    assert (answer.model, answer.fallbacks, answer.spent.calls.total()) == ("first", 0, 1)
    assert answer.spent.prompt_tokens > 0 and answer.spent.output_tokens > 0 and answer.spent.seconds > 0
    plain = chain.ask("How many?")
    assert plain.reply.parsed is None and not plain.reply.is_cut and "stand-in" in plain.reply.text
    body = server.requests[0].body
    assert read_text(body) == "How many?" and body["systemInstruction"]["parts"] == [{"text": "Count."}]
    assert body["generationConfig"]["responseSchema"]["properties"]["number"]["maximum"] == 3
    assert body["store"] is False, "Google keeps no log of it"


@pytest.mark.parametrize(
    ("fault", "calls"),
    [
        (Fault("cut"), 3),
        (Fault("says", message=""), 3),
        (Fault("says", message="A score of 3, I would say."), 3),
        (Fault("no reply"), 3),
        (Fault("says", message='{"number": 4}'), 3),
        (Fault("close"), 3),
        (Fault("status", 500), 3),
        (Fault("status", 503, retry_delay=0.01), 3),
        (Fault("status", 408), 3),
        (Fault("status", 429, retry_delay=0.01), 3),
        (Fault("status", 429, quota=("GenerateRequestsPerDayPerProjectPerModel", "250")), 1),
        (Fault("status", 429, quota=("GenerateRequestsPerMinutePerProjectPerModel-FreeTier", "0")), 1),
        (Fault("status", 429, "Quota exceeded for metric: requests, limit: 0, model: first"), 1),
        (Fault("status", 504), 3),
        (Fault("blocked"), 1),
        (Fault("filtered"), 1),
        (Fault("status", 400), 1),
        (Fault("status", 403), 1),
        (Fault("status", 404), 1),
    ],
    ids=lambda value: f"{value.kind} {value.status}" if isinstance(value, Fault) else str(value),
)
def test_failing_model_is_retried_only_while_retries_may_help(serve, make_chain, monkeypatch, fault, calls):
    monkeypatch.setattr(module, "FIRST_DELAY", 0.01)
    server = serve(faults=fail_first(fault))
    answer = make_chain(server, window=0.5).ask("How many?", schema=Form)
    assert (answer.model, answer.fallbacks, answer.spent.calls.total()) == ("second", 1, calls + 1)
    assert list_asked_models(server) == ["first"] * calls + ["second"]


@pytest.mark.parametrize("quota", [("RequestsPerDay", "250"), None], ids=["said", "found out"])
def test_exhausted_model_costs_no_sample_time(serve, make_chain, quota):
    """The server asks for pauses shorter than the deadline, but never recovers."""
    server = serve(faults=fail_first(Fault("status", 429, retry_delay=0.5, quota=quota)))
    chain = make_chain(server, window=1.0, deadline=20.0)
    while not chain.limits.models["first"].openings:  # until it is known
        assert chain.ask("early").model == "second"
    asked_before = len(server.requests)
    # In alternation, so that a busy machine slows both.
    other = Chain(replace(chain.settings, models=("second",)), chain.client)
    pairs = [[each.ask(f"later {number}").spent.seconds for each in (chain, other)] for number in range(40)]
    with_first, without = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    assert with_first < without + 0.25, "less than one pause"
    assert list_asked_models(server)[asked_before:].count("first") <= 20, "probes"


def test_a_missing_model_costs_one_call_and_one_line(serve, make_chain, caplog):
    server = serve(models=["second"])
    chain = make_chain(server)
    answers = [chain.ask(f"question {number}") for number in range(3)]
    assert {answer.model for answer in answers} == {"second"}
    assert [answer.spent.calls.total() for answer in answers] == [2, 1, 1]
    [line] = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert "are left out: first: 404" in line and "no longer available" in line


def test_a_model_is_found_or_not(serve):
    client = Client(KEY, serve(models=["here"]).url)
    client.find("here", 5.0)
    with pytest.raises(CallError) as failure:
        client.find("gone", 5.0)
    assert failure.value.kind is Kind.NO_MODEL


def test_a_quota_is_kept_by_all_threads(serve, make_chain):
    quota = Quota(5, 1.0)
    server = serve(quota=quota)
    chain = make_chain(server, models=("only",), requests_per_window=5, window=1.0)
    with ThreadPoolExecutor(15) as pool:
        list(pool.map(chain.ask, map(str, range(15))))
    statuses = Counter(request.status for request in server.requests)
    assert statuses[200] == 15 and statuses[429] <= 5, "without limits there are 10 at once, and 5 more a window later"


def test_an_unknown_quota_is_found(serve, make_chain):
    """The limits are four times too high: after the first 429s few calls are wasted, and all are answered."""
    server = serve(quota=Quota(8, 1.0))
    chain = make_chain(server, models=("only",), tries=10, requests_per_window=32, concurrency=8, window=1.0)
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(chain.ask, map(str, range(40))))
    assert len(answers) == 40
    first_window = server.requests[0].time + 1.0
    later = Counter(request.status for request in server.requests if request.time > first_window)
    assert later[429] <= 0.5 * later[200], "as configured there would be three for each answer"
