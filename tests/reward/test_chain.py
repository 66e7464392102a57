"""Deadlines, limits, and breakers of a chain of models, at a server that fails."""

import asyncio
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reward import chain as module
from reward.chain import FAILURES_TO_OPEN, Answer, ChainError, NoSlot

from . import gemini_server
from .gemini_server import GeminiServer, error, says
from .test_answers_of_gemini import AGAIN, GOOD, NEXT


async def ask(chain, prompt: str = "How many?") -> Answer | ChainError:
    try:
        return await chain.ask(prompt)
    except ChainError as failure:
        return failure


async def ask_all(chain, count: int) -> list[Answer | ChainError]:
    return await asyncio.gather(*(ask(chain, f"question {number}") for number in range(count)))


@pytest.mark.parametrize("fault", ["hang", "trickle", "trickle headers", "early hints"])
def test_a_call_ends_with_its_time_and_its_connection(serve, make_chain, run, monkeypatch, fault) -> None:
    """No time-out of a single read ends what sends a byte now and then."""
    monkeypatch.setattr(module, "FIRST_DELAY", 0.01)
    server = serve(lambda number, model: gemini_server.Answer(fault=fault) if number and model == "first" else None)
    chain = make_chain(server, call_timeout=1.0, tries=2, deadline=400.0)
    generate = chain.client.generate
    chain.client.generate = lambda settings, model, seconds, *rest: generate(
        settings, model, seconds if server.requests and model == "first" else 100.0, *rest
    )
    run(ask(chain))  # what the first call imports takes long
    started, answer = time.monotonic(), run(ask(chain))
    assert isinstance(answer, Answer) and server.asked[1:] == ["first", "first", "second"]
    assert time.monotonic() - started >= 2.0


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["good", "hang", "trickle", "close", *AGAIN, *NEXT]), min_size=1, max_size=12))
def test_whatever_comes_the_deadline_and_the_tries_hold(serve, make_chain, names) -> None:
    faults = {name: gemini_server.Answer(fault=name) for name in ("hang", "trickle")} | {"good": says(GOOD)}
    table = faults | AGAIN | NEXT
    with GeminiServer(lambda number, model: table[names[number % len(names)]]) as server:
        chain, called = make_chain(server, tries=2, deadline=2.0, call_timeout=3600.0), list[str]()
        generate = chain.client.generate
        chain.client.generate = lambda settings, model, *rest: called.append(model) or generate(settings, model, *rest)
        answer = asyncio.run(ask(chain))  # the deadline ends a call that hangs
        assert all(called.count(model) <= 2 for model in chain.settings.models)
        # The deadline may end a call before it reaches the server.
        assert answer.calls == len(called) >= max(1, len(server.asked))


def test_every_model_gets_its_share_of_the_deadline(serve, make_chain, run) -> None:
    server = serve(lambda number, model: gemini_server.Answer(fault="hang") if model != "third" else None)
    answer = run(ask(make_chain(server, call_timeout=60.0, deadline=12.0)))
    assert isinstance(answer, Answer) and answer.position == 2 and server.asked == ["first", "second", "third"]


def test_no_window_holds_more_requests_than_the_quota(serve, make_chain, run) -> None:
    server = serve()
    chain = make_chain(server, models=("only",), requests_per_window=5, window=4.0)
    answers = run(ask_all(chain, 14))
    times = [request.time for request in server.requests]
    assert all(isinstance(answer, Answer) for answer in answers) and len(times) == 14
    # On a busy machine, a call may reach the server late.
    assert all(later - earlier > 1.0 for earlier, later in zip(times, times[5:], strict=False))
    answers = run(ask_all(make_chain(server, models=("only",), requests_per_window=2), 12))
    assert len(server.requests) - 14 == 2 == sum(isinstance(answer, Answer) for answer in answers)


def test_no_more_calls_are_under_way_than_allowed(serve, make_chain, run) -> None:
    server = serve(latency=0.3)
    started = time.monotonic()
    run(ask_all(make_chain(server, models=("only",), concurrency=2), 6))
    assert time.monotonic() - started >= 3 * 0.3


def test_a_429_pauses_its_model_for_all_questions_as_long_as_the_server_asks(serve, make_chain, run) -> None:
    server = serve(lambda number, model: error(429, delay="0.6s") if number == 0 else None)

    async def begin() -> None:
        chain = make_chain(server, models=("only",))
        first = asyncio.create_task(ask(chain))
        while not server.requests or chain.gates["only"]._running:
            await asyncio.sleep(0.01)
        await asyncio.gather(first, ask_all(chain, 3))

    run(begin())
    times = [request.time for request in server.requests]
    assert len(times) == 5 and times[1] - times[0] >= 0.6


def test_a_model_that_fails_is_spared_and_probed_by_one_call_until_it_answers(
    serve, make_chain, run, monkeypatch
) -> None:
    """Questions that wait when it is due again send one request, not one each."""
    monkeypatch.setattr(module, "FIRST_DELAY", 0.0)
    is_away = [True]
    server = serve(lambda number, model: error(500) if model == "first" and is_away[0] else None, latency=0.1)
    chain = make_chain(server, models=("first", "second"), tries=FAILURES_TO_OPEN, window=6000.0)
    gate, pause = chain.gates["first"], 6000.0 * module.FIRST_OPEN  # none ends while the test runs

    async def story() -> None:
        await ask(chain)
        assert server.asked == ["first"] * FAILURES_TO_OPEN + ["second"]
        await ask_all(chain, 10)
        assert server.asked.count("first") == FAILURES_TO_OPEN, "while it is open, nobody asks"
        assert 0 < gate._open_until - time.monotonic() <= pause
        gate._open_until = time.monotonic()
        await ask_all(chain, 10)
        assert server.asked.count("first") == FAILURES_TO_OPEN + 1, "one probe"
        is_away[0] = False
        assert pause < gate._open_until - time.monotonic() <= 2 * pause
        gate._open_until = time.monotonic()
        await ask(chain)
        before = len(server.asked)
        await ask_all(chain, 10)
        assert server.asked[before:] == ["first"] * 10

    run(story())


@pytest.mark.parametrize("answer", [NEXT["429 of a day"], error(429, delay="0.02s")], ids=["said", "found out"])
def test_a_spent_quota_costs_later_questions_no_time(serve, make_chain, run, monkeypatch, answer) -> None:
    for name in ("FIRST_OPEN", "LONGEST_OPEN"):
        monkeypatch.setattr(module, name, 100.0)  # windows: no question comes later, however busy the machine is
    server = serve(lambda number, model: answer if model == "first" else None)
    chain = make_chain(server, window=0.5, tries=100)
    run(ask(chain))
    before = server.asked.count("first")
    assert run(ask_all(chain, 5)) and server.asked.count("first") == before


def test_calls_that_the_deadline_cuts_are_no_evidence_against_a_model(serve, make_chain, run) -> None:
    chain = make_chain(serve(latency=60.0), models=("slow",), deadline=1.0, call_timeout=60.0)
    run(ask_all(chain, FAILURES_TO_OPEN + 1))
    assert not isinstance(run(chain.gates["slow"].take(time.monotonic())), NoSlot)
