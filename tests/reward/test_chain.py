"""Every fault that the stand-in knows, through google-genai's real client: what is asked next, and when it ends."""

import contextlib
import logging
import math
import statistics
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from email.utils import format_datetime, parsedate_to_datetime
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from reward import chain as module
from reward import gemini
from reward.chain import Chain, ChainError
from reward.gemini import CallError, Client, Kind
from reward.limits import FAILURES_TO_OPEN, NoPlace, Place
from reward.settings import STAND_IN_KEY, ChainSettings
from reward.shared_state import SharedState
from reward.stand_in import Fault, Quota, StandIn
from reward.stand_in_replies import text_of

KEY = "AIza-not-a-real-key-0123456789"


class Form(BaseModel):
    number: int = Field(ge=0, le=3)


@pytest.fixture
def make_chain(tmp_path):
    def make(server: StandIn, key: str | None = None, **settings: object) -> Chain:
        values = {"models": ("first", "second", "third"), "deadline": 20.0, "call_timeout": 10.0} | settings
        state = SharedState(tmp_path / "judge.sqlite")
        return Chain(ChainSettings(**values), state, Client(key or STAND_IN_KEY, server.url))

    return make


def state_of(chain: Chain, model: str) -> dict[str, float]:
    """What all processes know of a model."""
    with chain.limits._state.transaction() as connection:
        row = connection.execute("SELECT * FROM models WHERE model = ?", (model,)).fetchone()
    return dict(row) if row else {"paused_until": 0.0, "openings": 0}


def of_first(fault: Fault):
    """A plan in which everything goes wrong with the first model."""
    return lambda number, model: fault if model == "first" else None


def asked(server: StandIn) -> list[str]:
    return [request.model for request in server.requests]


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
    assert text_of(body) == "How many?" and body["systemInstruction"]["parts"] == [{"text": "Count."}]
    assert body["generationConfig"]["responseSchema"]["properties"]["number"]["maximum"] == 3
    assert body["store"] is False, "Google keeps no log of it"


@pytest.mark.parametrize(
    ("fault", "calls"),
    [
        (Fault("cut"), 3),
        (Fault("empty"), 3),
        (Fault("not json"), 3),
        (Fault("no reply"), 3),
        (Fault("out of range"), 3),
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
def test_a_model_that_fails_is_tried_as_often_as_it_may_help(serve, make_chain, monkeypatch, fault, calls):
    monkeypatch.setattr(module, "FIRST_DELAY", 0.01)
    server = serve(faults=of_first(fault))
    answer = make_chain(server, window=0.5).ask("How many?", schema=Form)
    assert (answer.model, answer.fallbacks, answer.spent.calls.total()) == ("second", 1, calls + 1)
    assert asked(server) == ["first"] * calls + ["second"]


@pytest.mark.parametrize(
    "fault", [Fault("hang", seconds=600), Fault("slow", seconds=2.0)], ids=lambda fault: fault.kind
)
def test_a_call_ends_with_its_time(serve, make_chain, monkeypatch, fault):
    """A slow reply sends a byte every now and then: no time-out for a single read ends it."""
    monkeypatch.setattr(module, "FIRST_DELAY", 0.01)
    server = serve(faults=of_first(fault))
    started = time.monotonic()
    answer = make_chain(server, call_timeout=1.0, tries=2, deadline=60.0).ask("How many?", schema=Form)
    assert answer.model == "second" and asked(server) == ["first"] * 2 + ["second"]
    assert time.monotonic() - started >= 2 * 1.0, "and either fault would last for minutes, beyond this test's time"


@pytest.mark.parametrize(
    "fault",
    [
        Fault("hang", seconds=600),
        Fault("slow", seconds=2.0),
        Fault("status", 500),
        Fault("status", 429, retry_delay=300),
    ],
    ids=lambda fault: f"{fault.kind} {fault.status}",
)
def test_the_deadline_is_kept_with_all_waiting(serve, make_chain, fault):
    server = serve(faults=lambda number, model: fault)
    chain = make_chain(server, deadline=2.0, call_timeout=1.0, tries=1000)
    started = time.monotonic()
    with pytest.raises(ChainError) as failure:
        chain.ask("How many?")
    assert failure.value.spent.seconds <= time.monotonic() - started < 30, "all tries would take many minutes"
    assert "first: " in str(failure.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [2, 1, 1]),
        ({"call_timeout": 0.5}, [3, 3, 3]),
        ({"models": ("first",)}, [3]),
        ({"call_timeout": 8.0}, [1, 1, 1]),
    ],
    ids=["as the defaults, in small", "all fit", "one model", "a call may take the deadline"],
)
def test_slow_failures_get_the_tries_that_are_foretold(serve, make_chain, monkeypatch, changes, expected):
    """Every model gets one; JUDGE_TRIES is reached where the deadline has room."""
    monkeypatch.setattr(module, "FIRST_DELAY", 0.01)
    server = serve(faults=lambda number, model: Fault("hang", seconds=600))
    chain = make_chain(server, **({"deadline": 8.0, "call_timeout": 3.0, "tries": 3} | changes))
    foretold = module.tries_without_answer(chain.settings)
    assert [len(seconds) for seconds in foretold] == expected
    with pytest.raises(ChainError) as failure:
        chain.ask("How many?")
    assert [failure.value.spent.calls[model] for model in chain.settings.models] == expected


@given(
    tries=st.integers(1, 6),
    deadline=st.floats(1.0, 1000.0),
    call_timeout=st.floats(1.0, 1000.0),
    count=st.integers(1, 8),
)
def test_the_deadline_holds_every_try_that_is_foretold(tries, deadline, call_timeout, count):
    models = tuple(map(str, range(count)))
    found = module.tries_without_answer(ChainSettings(models, tries, deadline, call_timeout))
    assert len(found) == count and all(1 <= len(seconds) <= tries for seconds in found)
    assert all(0 < second <= call_timeout for seconds in found for second in seconds)
    assert math.fsum(second for seconds in found for second in seconds) <= deadline + 1e-6
    if 2 * count * tries * call_timeout <= 0.9 * deadline:
        assert found == [[call_timeout] * tries] * count, "where there is room, all tries are made"


def test_nobody_waits_longer_than_the_deadline_for_the_limits(serve, make_chain):
    server = serve(latency=0.2)
    chain = make_chain(server, deadline=1.5, call_timeout=1.0, requests_per_window=2, models=("first",))

    def ask(number: int) -> float:
        started = time.monotonic()
        with contextlib.suppress(ChainError):
            chain.ask(f"question {number}")
        return time.monotonic() - started

    with ThreadPoolExecutor(12) as pool:
        seconds = list(pool.map(ask, range(12)))
    assert len(server.requests) == 2 and max(seconds) < 30, "the window is a minute"


def test_the_servers_delay_is_kept_by_all(serve, make_chain):
    """A 429 pauses the model for every thread, as long as the server says, and for no model else."""
    server = serve(faults=lambda number, model: Fault("status", 429, retry_delay=0.6) if number == 0 else None)
    chain = make_chain(server, models=("only",), window=5.0)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(chain.ask, "question")
        while not server.requests:
            time.sleep(0.01)
        while not state_of(chain, "only")["paused_until"]:
            time.sleep(0.01)
        rest = [pool.submit(chain.ask, f"question {number}") for number in range(3)]
        for future in (first, *rest):
            future.result()
    times = [request.time for request in server.requests]
    assert len(times) == 5 and times[1] - times[0] >= 0.6


@pytest.mark.parametrize(
    ("response", "details", "expected"),
    [
        (
            {},
            {"error": {"details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "53s"}]}},
            53.0,
        ),
        ({}, {"details": [{"@type": "x/google.rpc.RetryInfo", "retryDelay": "0.25s"}]}, 0.25),
        ({"retry-after": "7"}, {"error": {"details": []}}, 7.0),
        ({"retry-after": "7"}, {"error": {"details": [{"@type": "x/google.rpc.Help"}]}}, 7.0),
        ({}, {"error": {"details": [{"@type": "x/google.rpc.RetryInfo", "retryDelay": "soon"}, 3, None]}}, None),
        ({"retry-after": "soon"}, {}, None),
        ({}, "no dictionary", None),
    ],
)
def test_delays_are_read(response, details, expected):
    assert gemini.retry_delay(SimpleNamespace(details=details, response=SimpleNamespace(headers=response))) == expected


def test_a_date_is_a_delay():
    then = parsedate_to_datetime("Sat, 01 Jan 2100 00:00:00 GMT")
    error = SimpleNamespace(details={}, response=SimpleNamespace(headers={"retry-after": format_datetime(then)}))
    assert gemini.retry_delay(error) == pytest.approx(then.timestamp() - time.time(), abs=5)


@pytest.mark.parametrize("quota", [("RequestsPerDay", "250"), None], ids=["said", "found out"])
def test_no_sample_loses_time_to_a_model_whose_quota_is_spent(serve, make_chain, quota):
    """The server asks for pauses that are shorter than the deadline, and refuses for ever."""
    server = serve(faults=of_first(Fault("status", 429, retry_delay=0.5, quota=quota)))
    chain = make_chain(server, window=1.0, deadline=20.0)
    while not state_of(chain, "first")["openings"]:  # until it is known
        assert chain.ask("early").model == "second"
    asked_before = len(server.requests)
    # Side by side, so that a busy machine slows both.
    other = Chain(replace(chain.settings, models=("second",)), chain.limits._state, chain.client)
    pairs = [[each.ask(f"later {number}").spent.seconds for each in (chain, other)] for number in range(40)]
    with_first, without = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    assert with_first < without + 0.25, "less than one pause"
    assert asked(server)[asked_before:].count("first") <= 20, "probes"


def test_a_healthy_model_whose_calls_the_deadline_cuts_is_not_failing(serve, make_chain):
    server = serve(latency=60.0)
    chain = make_chain(server, models=("slow",), deadline=2.0, call_timeout=60.0)

    def ask(number: int) -> None:
        with pytest.raises(ChainError, match=r"no whole answer|Timeout"):
            chain.ask(f"question {number}")

    with ThreadPoolExecutor(FAILURES_TO_OPEN + 1) as pool:
        list(pool.map(ask, range(FAILURES_TO_OPEN + 1)))
    assert len(server.requests) >= FAILURES_TO_OPEN + 1
    assert isinstance(chain.limits.take("slow", 1, 0.0), Place)


def test_time_outs_of_whole_calls_open_the_breaker(serve, make_chain, monkeypatch):
    monkeypatch.setattr("reward.chain.FIRST_DELAY", 0.01)
    chain = make_chain(serve(latency=2.0), models=("slow",), deadline=8.0, call_timeout=0.1, tries=FAILURES_TO_OPEN)
    with pytest.raises(ChainError):
        chain.ask("How many?")
    refusal = chain.limits.take("slow", 1, 0.0)
    assert isinstance(refusal, NoPlace) and refusal.is_open


def test_a_state_that_breaks_during_a_call_costs_no_answer(serve, make_chain, caplog):
    def lose(number, model):
        connection.execute("DROP TABLE calls")

    server = serve(faults=lose)
    chain = make_chain(server)
    connection = chain.limits._state._connection
    assert chain.ask("How many?").model == "first"
    assert "could not take note" in caplog.text


@pytest.mark.parametrize("key", ["AIza-with\na-line-break", "AIza-with\x00a-null", "AIza-\u00fcnicode"])
def test_a_key_that_cannot_be_sent_is_not_shown(serve, key):
    with pytest.raises(CallError) as failure:
        Client(key, serve().url).find("first", 5.0)
    assert "AIza" not in str(failure.value) + repr(failure.value)


def test_delays_grow_and_are_drawn_from_zero(monkeypatch, serve, make_chain):
    drawn = []
    monkeypatch.setattr(module.random, "uniform", lambda low, high: drawn.append((low, high)) or 0.0)
    server = serve(faults=of_first(Fault("status", 500)))
    make_chain(server, tries=4).ask("How many?")
    assert drawn == [(0, 1.0), (0, 2.0), (0, 4.0)]


def test_a_refused_key_ends_the_chain_and_is_logged_once(serve, make_chain, caplog):
    server = serve(key="another key")
    chain = make_chain(server, KEY)
    with caplog.at_level(logging.DEBUG):
        for expected in ("API key not valid", "breaker is open", "breaker is open"):
            with pytest.raises(ChainError, match=expected):
                chain.ask("How many?")
    assert server.refused == 1, "the next questions cost no call"
    [line] = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert "first, second, third" in line
    assert KEY not in caplog.text


def test_a_missing_model_costs_one_call_and_one_line(serve, make_chain, caplog):
    server = serve(models=["second"])
    chain = make_chain(server)
    answers = [chain.ask(f"question {number}") for number in range(3)]
    assert {answer.model for answer in answers} == {"second"}
    assert [answer.spent.calls.total() for answer in answers] == [2, 1, 1]
    [line] = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert "left out: first: 404" in line and "no longer available" in line


@pytest.mark.parametrize("status", [400, 401, 429, 500, 404])
def test_the_key_is_in_no_error_and_no_log(serve, make_chain, caplog, tmp_path, status):
    """Also where the server repeats it."""
    fault = Fault("status", status, "you said {key}, I say {key}", retry_delay=0.01)
    server = serve(faults=lambda number, model: fault)
    chain = make_chain(server, KEY, deadline=1.0, window=0.2)
    with caplog.at_level(logging.DEBUG), pytest.raises(ChainError) as failure:
        chain.ask("How many?")
    assert "<key>" in str(failure.value)
    error: BaseException | None = failure.value
    while error is not None:
        assert KEY not in repr(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert KEY not in caplog.text
    for file in tmp_path.iterdir():
        assert KEY.encode() not in file.read_bytes(), file


def test_without_a_connection_the_error_names_no_key():
    client = Client(KEY, "http://127.0.0.1:1")
    with pytest.raises(CallError) as failure:
        client.find("first", 2.0)
    assert failure.value.kind is Kind.FAILED and KEY not in repr(failure.value)


def test_a_model_is_found_or_not(serve):
    client = Client(KEY, serve(models=["here"]).url)
    client.find("here", 5.0)
    with pytest.raises(CallError) as failure:
        client.find("gone", 5.0)
    assert failure.value.kind is Kind.NO_MODEL


def test_a_chain_needs_a_key(tmp_path):
    with pytest.raises(ValueError, match="GEMINI_API_KEY"):
        module.connect(ChainSettings(("first",)), SharedState(tmp_path / "judge.sqlite"), None)


def test_the_stand_in_never_gets_the_real_key(serve, tmp_path):
    server = serve(key=STAND_IN_KEY)
    chain = module.connect(ChainSettings(("first",)), SharedState(tmp_path / "judge.sqlite"), KEY, server.url)
    assert chain.ask("How many?").model == "first"


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
