"""How long a chain of models takes: deadlines, time-outs, and delays between tries."""

import contextlib
import math
import time
from concurrent.futures import ThreadPoolExecutor
from email.utils import format_datetime, parsedate_to_datetime
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward import chain as module
from reward import gemini
from reward.chain import ChainError
from reward.limits import FAILURES_TO_OPEN, NoSlot, Slot

from .chains import Form, fail_first, list_asked_models, make_chain_settings
from .faulty import Fault


@pytest.mark.parametrize(
    "fault", [Fault("hang", seconds=600), Fault("slow", seconds=2.0)], ids=lambda fault: fault.kind
)
def test_a_call_ends_with_its_time(serve, make_chain, monkeypatch, fault):
    """A slow reply sends a byte every now and then: no time-out for a single read ends it."""
    monkeypatch.setattr(module, "FIRST_DELAY", 0.01)
    server = serve(faults=fail_first(fault))
    started = time.monotonic()
    answer = make_chain(server, call_timeout=1.0, tries=2, deadline=60.0).ask("How many?", schema=Form)
    assert answer.model == "second" and list_asked_models(server) == ["first"] * 2 + ["second"]
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
def test_deadline_includes_all_waiting(serve, make_chain, fault):
    server = serve(faults=lambda number, model: fault)
    chain = make_chain(server, deadline=2.0, call_timeout=1.0, tries=1000)
    started = time.monotonic()
    with pytest.raises(ChainError) as failure:
        chain.ask("How many?")
    assert failure.value.spent.seconds <= time.monotonic() - started  # all tries would outlast pytest's limit
    assert "first: " in str(failure.value)


SLOW_FAILURES = {
    "as the defaults, in small": ({}, [2, 1, 1]),
    "all fit": ({"call_timeout": 0.5}, [3, 3, 3]),
    "one model": ({"models": ("first",)}, [3]),
    "a call may take the deadline": ({"call_timeout": 8.0}, [1, 1, 1]),
}


def test_slow_failures_get_the_tries_that_are_foretold(serve, make_chain, monkeypatch):
    """Every model gets one try, and JUDGE_TRIES if the deadline leaves room. All cases wait at the same time."""
    monkeypatch.setattr(module, "FIRST_DELAY", 0.01)
    chains = {}
    for name, (changes, expected) in SLOW_FAILURES.items():
        server = serve(faults=lambda number, model: Fault("hang", seconds=600))
        settings = {"deadline": 8.0, "call_timeout": 3.0, "tries": 3} | changes
        chains[name] = make_chain(server, **settings)
        foretold = module.tries_without_answer(chains[name].settings)
        assert [len(seconds) for seconds in foretold] == expected, name
    with ThreadPoolExecutor(len(chains)) as pool:
        answers = {name: pool.submit(chain.ask, "How many?") for name, chain in chains.items()}
    for name, (_, expected) in SLOW_FAILURES.items():
        with pytest.raises(ChainError) as failure:
            answers[name].result()
        assert [failure.value.spent.calls[model] for model in chains[name].settings.models] == expected, name


@given(
    tries=st.integers(1, 6),
    deadline=st.floats(1.0, 1000.0),
    call_timeout=st.floats(1.0, 1000.0),
    count=st.integers(1, 8),
)
def test_the_deadline_holds_every_try_that_is_foretold(tries, deadline, call_timeout, count):
    models = tuple(map(str, range(count)))
    schedules = module.tries_without_answer(
        make_chain_settings(*models, tries=tries, deadline=deadline, call_timeout=call_timeout)
    )
    assert len(schedules) == count and all(1 <= len(seconds) <= tries for seconds in schedules)
    assert all(0 < second <= call_timeout for seconds in schedules for second in seconds)
    assert math.fsum(second for seconds in schedules for second in seconds) <= deadline + 1e-6
    if 2 * count * tries * call_timeout <= 0.9 * deadline:
        assert schedules == [[call_timeout] * tries] * count, "where there is room, all tries are made"


def test_waiting_for_limits_ends_at_the_deadline(serve, make_chain):
    server = serve(latency=0.2)
    chain = make_chain(server, deadline=1.5, call_timeout=1.0, requests_per_window=2, models=("first",))

    def ask(number: int) -> None:
        with contextlib.suppress(ChainError):
            chain.ask(f"question {number}")

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(ask, range(12)))
    assert len(server.requests) == 2, "whoever waits for the next window, a minute, asks again"


def test_the_servers_delay_is_kept_by_all(serve, make_chain):
    """A 429 pauses the model for every thread, as long as the server says, and for no model else."""
    server = serve(faults=lambda number, model: Fault("status", 429, retry_delay=0.6) if number == 0 else None)
    chain = make_chain(server, models=("only",), window=5.0)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(chain.ask, "question")
        while not server.requests:
            time.sleep(0.01)
        while not chain.limits.models["only"].paused_until:
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


def test_a_healthy_model_whose_calls_the_deadline_cuts_is_not_failing(serve, make_chain):
    server = serve(latency=60.0)
    chain = make_chain(server, models=("slow",), deadline=2.0, call_timeout=60.0)

    def ask(number: int) -> None:
        with pytest.raises(ChainError, match=r"no complete answer|Timeout"):
            chain.ask(f"question {number}")

    with ThreadPoolExecutor(FAILURES_TO_OPEN + 1) as pool:
        list(pool.map(ask, range(FAILURES_TO_OPEN + 1)))
    assert len(server.requests) >= FAILURES_TO_OPEN + 1
    assert isinstance(chain.limits.take("slow", 1, 0.0), Slot)


def test_time_outs_of_whole_calls_open_the_breaker(serve, make_chain, monkeypatch):
    monkeypatch.setattr("reward.chain.FIRST_DELAY", 0.01)
    chain = make_chain(serve(latency=2.0), models=("slow",), deadline=8.0, call_timeout=0.1, tries=FAILURES_TO_OPEN)
    with pytest.raises(ChainError):
        chain.ask("How many?")
    refusal = chain.limits.take("slow", 1, 0.0)
    assert isinstance(refusal, NoSlot) and refusal.is_open


def test_delays_grow_and_are_drawn_from_zero(monkeypatch, serve, make_chain):
    drawn = []
    monkeypatch.setattr(module.random, "uniform", lambda low, high: drawn.append((low, high)) or 0.0)
    server = serve(faults=fail_first(Fault("status", 500)))
    make_chain(server, tries=4).ask("How many?")
    assert drawn == [(0, 1.0), (0, 2.0), (0, 4.0)]
