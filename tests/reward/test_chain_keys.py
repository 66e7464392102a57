"""The key of the judge: needed, refused, and never shown."""

import logging

import pytest

from reward import chain as module
from reward.chain import ChainError
from reward.gemini import CallError, Client, Kind
from reward.settings import STAND_IN_KEY

from .chains import KEY, make_chain_settings
from .faulty import Fault


@pytest.mark.parametrize("key", ["AIza-with\na-line-break", "AIza-with\x00a-null", "AIza-\u00fcnicode"])
def test_a_key_that_cannot_be_sent_is_not_shown(serve, key):
    with pytest.raises(CallError) as failure:
        Client(key, serve().url).find("first", 5.0)
    assert "AIza" not in str(failure.value) + repr(failure.value)


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


@pytest.mark.parametrize("status", [400, 401, 429, 500, 404])
def test_the_key_is_in_no_error_and_no_log(serve, make_chain, caplog, status):
    """This includes errors in which the server repeats the key."""
    fault = Fault("status", status, "you said {key}, I say {key}", retry_delay=0.01)
    server = serve(faults=lambda number, model: fault)
    chain = make_chain(server, KEY, window=0.2)
    with caplog.at_level(logging.DEBUG), pytest.raises(ChainError) as failure:
        chain.ask("How many?")
    assert "<key>" in str(failure.value)
    error: BaseException | None = failure.value
    while error is not None:
        assert KEY not in repr(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert KEY not in caplog.text


def test_without_a_connection_the_error_names_no_key():
    client = Client(KEY, "http://127.0.0.1:1")
    with pytest.raises(CallError) as failure:
        client.find("first", 2.0)
    assert failure.value.kind is Kind.FAILED and KEY not in repr(failure.value)


def test_a_chain_needs_a_key():
    with pytest.raises(ValueError, match="GEMINI_API_KEY"):
        module.connect(make_chain_settings("first"), None)


def test_the_stand_in_never_gets_the_real_key(serve):
    server = serve(key=STAND_IN_KEY)
    chain = module.connect(make_chain_settings("first"), KEY, server.url)
    assert chain.ask("How many?").model == "first"
