"""The servers that the client contacts, for any answers and environment: real servers, google-genai's client."""

import contextlib
import gzip
import json
import logging
import socket
import threading

import pytest

from reward import endpoint
from reward.chain import ChainError, connect
from reward.gemini import CallError, Client, Kind
from reward.judge import Judge
from reward.judgements import Judgements
from reward.settings import GOOGLE_URL, STAND_IN_KEY, JudgeSettings

from .chains import make_chain_settings
from .faulty import StandIn
from .recorder import BEST, Answer, Recorder, make_redirector

KEY = "AIza-Not-A-Real-Key-0123456789"
STATUSES = (301, 302, 303, 307, 308)
PASSWORD = "s3cret-of-the-proxy"
PROXIES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
ASK = {
    "generate": lambda client: client.generate("first", "the prompt", 10.0, 100),
    "find": lambda client: client.find("first", 10.0),
}


@pytest.fixture(autouse=True)
def no_network(monkeypatch) -> list[str]:
    """Return the names that are looked up. Only loopback's name resolves."""
    names = []
    look_up = socket.getaddrinfo

    def resolve_loopback(host, *arguments, **options):
        if host in ("127.0.0.1", "localhost"):
            return look_up(host, *arguments, **options)
        names.append(host)
        raise socket.gaierror(f"{host} is not looked up in tests")

    monkeypatch.setattr(socket, "getaddrinfo", resolve_loopback)
    for name in (*PROXIES, "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    return names


def catch_failure(client: Client, ask: str) -> CallError | None:
    """Return how a call fails, None where it does not."""
    try:
        ASK[ask](client)
    except CallError as error:
        return error
    return None


@pytest.mark.parametrize("ask", ASK)
@pytest.mark.parametrize("status", STATUSES)
def test_a_redirect_is_not_followed(status, ask):
    with Recorder() as foreign, make_redirector(status, foreign.url) as server:
        error = catch_failure(Client(KEY, server.url), ask)
        assert foreign.seen == [] and len(server.seen) == 1
        assert error and error.kind is Kind.REDIRECTED
        assert f"redirects ({status}) to the host {foreign.host}" in str(error) and KEY not in str(error)


@pytest.mark.parametrize("backend", ["httpx", "httpx2", "auto"])
def test_no_other_http_library_follows_one(monkeypatch, backend):
    monkeypatch.setenv("GOOGLE_GENAI_HTTP_CLIENT", backend)
    with Recorder() as foreign, make_redirector(307, foreign.url) as server:
        for ask in ASK:
            assert catch_failure(Client(KEY, server.url), ask)
        assert foreign.seen == []


def test_the_scores_of_another_host_do_not_count(tmp_path, caplog):
    """And the key goes to the address that redirects once, not once for each model and try."""
    with Recorder() as foreign, make_redirector(307, foreign.url) as server:
        chain = make_chain_settings("first", "second", deadline=20.0, call_timeout=10.0)
        client = connect(chain, KEY)
        client.client = Client(KEY, server.url)
        settings = JudgeSettings(chain, 0.6, 0.4, "correctness", True)
        judge = Judge(settings, Judgements(tmp_path / "judge.sqlite"), client)
        with caplog.at_level(logging.INFO):
            verdicts = [judge.judge(f"problem {number}", "= \\boxed{7}", "7") for number in range(2)]
        assert foreign.seen == [] and len(server.seen) == 1
        assert all(verdict.failed == 1 for verdict in verdicts)
        assert judge.reward(1.0, verdicts[0]) == 1.0
        errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert sum(foreign.host in record.getMessage() for record in errors) == 2, "the limits and the judge, once each"
        assert KEY not in caplog.text


@pytest.mark.parametrize(
    "location",
    [
        f"http://{KEY}@127.0.0.1:1/",
        f"http://{KEY}.example/{KEY}",
        f"http://{KEY.lower()}.example/",
        f"http://user:{KEY}@host.example/?key={KEY}",
        f"/path?key={KEY}",
        f"{KEY}",
        f"//{KEY}",
        f"javascript:{KEY}",
        f"http://host.example\\@{KEY}/",
        "http://host.example\x1b[31m/",
        "\x1b]0;title\x07",
        "http://[bad",
        "http://host.example:99999999999/",
        "http://" + "a" * 5000,
        "",
    ],
)
def test_redirect_error_shows_only_the_host(location, caplog):
    with Recorder(lambda seen: Answer(302, b"", (("Location", location),))) as server:
        with caplog.at_level(logging.INFO):
            error = catch_failure(Client(KEY, server.url), "generate")
        assert error and error.kind is Kind.REDIRECTED
        for text in (str(error), repr(error), *caplog.messages):
            assert KEY.lower() not in text.lower() and text.isprintable()


def test_redirect_without_a_location_is_a_redirect():
    with Recorder(lambda seen: Answer(304, b"")) as server:
        error = catch_failure(Client(KEY, server.url), "find")
    assert error and error.kind is Kind.REDIRECTED and "does not name" in str(error)


@pytest.mark.parametrize("ask", ASK)
def test_variables_do_not_change_googles_address(monkeypatch, no_network, ask):
    with Recorder() as other:
        for name in ("GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL"):
            monkeypatch.setenv(name, other.url)
        error = catch_failure(Client(KEY, GOOGLE_URL), ask)
        assert other.seen == [] and error and error.kind is Kind.FAILED
    assert set(no_network) == {"generativelanguage.googleapis.com"}


@pytest.mark.parametrize("ask", ASK)
@pytest.mark.parametrize(
    "variables",
    [
        {"GOOGLE_GENAI_USE_VERTEXAI": "true", "GOOGLE_CLOUD_PROJECT": "p", "GOOGLE_CLOUD_LOCATION": "global"},
        {"GOOGLE_GENAI_USE_ENTERPRISE": "true", "GOOGLE_CLOUD_PROJECT": "p"},
        {"GOOGLE_GENAI_CLIENT_MODE": "record", "GOOGLE_GENAI_REPLAY_ID": "x"},
        {"GOOGLE_GENAI_CLIENT_MODE": "replay", "GOOGLE_GENAI_REPLAY_ID": "x"},
        {"GOOGLE_GENAI_API_VERSION": "v9"},
        {"GOOGLE_API_USE_CLIENT_CERTIFICATE": "true", "GOOGLE_API_USE_MTLS_ENDPOINT": "always"},
    ],
    ids=lambda variables: next(iter(variables.items()))[1],
)
def test_google_genai_variables_do_not_redirect_requests(monkeypatch, tmp_path, no_network, variables, ask):
    for name, value in (variables | {"GOOGLE_GENAI_REPLAYS_DIRECTORY": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    with Recorder() as server:
        assert catch_failure(Client(KEY, server.url), ask) is None
        [seen] = server.seen
        assert seen.path.startswith("/v1beta/models/first") and KEY in seen.text
    assert no_network == [] and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", PROXIES)
def test_environment_proxies_see_no_request(monkeypatch, name):
    with Recorder() as proxy, StandIn() as server:
        monkeypatch.setenv(name, f"http://user:{PASSWORD}@{proxy.host}")
        chain = connect(make_chain_settings("first"), None, server.url)
        assert chain.ask("How many?").model == "first"
        for ask in ASK:
            error = catch_failure(Client(KEY, "https://judge.invalid"), ask)
            assert error and error.kind is Kind.FAILED
        assert proxy.seen == [] and len(server.requests) == 1


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])
def test_requested_proxy_sees_requests_except_to_the_stand_in(monkeypatch, caplog, name):
    with Recorder(lambda seen: Answer(407, b"")) as proxy, StandIn() as server:
        monkeypatch.setenv(name, f"http://user:{PASSWORD}@{proxy.host}")
        monkeypatch.setenv("GRPO_JUDGE_BASE_URL", "https://judge.invalid")
        monkeypatch.setenv("GRPO_JUDGE_PROXY", "1")
        where = endpoint.from_environment()
        settings = make_chain_settings("first", tries=1)
        with caplog.at_level(logging.INFO), pytest.raises(ChainError) as said:
            connect(settings, KEY, None, where).ask("How many?")
        assert [(seen.method, seen.path) for seen in proxy.seen] == [("CONNECT", "judge.invalid:443")]
        assert KEY not in proxy.seen[0].text and "How many?" not in proxy.seen[0].text
        assert PASSWORD not in f"{said.value!r} {caplog.text} {where!r} {endpoint.describe(where)}"
        assert connect(settings, KEY, server.url, where).ask("How many?").model == "first"
        assert len(proxy.seen) == 1 and len(server.requests) == 1


def test_origin_distinguishes_servers():
    """Judgements are kept by it."""
    assert Client(KEY, GOOGLE_URL).origin is True
    assert Client(STAND_IN_KEY, "http://127.0.0.1:1").origin is False
    assert Client(KEY, "https://gateway.example").origin == "https://gateway.example"


def test_a_broken_proxy_of_the_environment_breaks_nothing(monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "socks9://[not-a-proxy")
    with Recorder() as server:
        assert catch_failure(Client(KEY, server.url), "find") is None


@pytest.mark.parametrize("encoding", ["gzip", None])
def test_a_reply_is_read_up_to_a_size(encoding):
    body = bytes(64 * 2**20)
    headers = (("Content-Encoding", encoding),) if encoding else ()
    answer = Answer(200, gzip.compress(body, 1) if encoding else body, headers)
    with Recorder(lambda seen: answer) as server:
        for ask in ASK:
            error = catch_failure(Client(KEY, server.url), ask)
            assert error and error.kind is Kind.BAD_REPLY and "more than 4194304 bytes" in str(error)


def test_a_compressed_reply_is_read():
    answer = Answer(200, gzip.compress(json.dumps(BEST).encode()), (("Content-Encoding", "gzip"),))
    with Recorder(lambda seen: answer) as server:
        assert json.loads(Client(KEY, server.url).generate("first", "prompt", 10.0, 100).text)["honesty"] == 4


@pytest.mark.parametrize("piece", [b"HTTP/1.1 103 Early Hints\r\n\r\n", b"a"])
def test_a_call_to_a_server_that_does_not_end_leaves_no_thread(piece):
    """Informational replies, or a reply that comes byte by byte."""
    is_over = threading.Event()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.recv(65536)
        if piece == b"a":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        with connection, contextlib.suppress(OSError):
            while not is_over.wait(0.01):
                connection.sendall(piece)

    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,), daemon=True)
        server.start()
        client = Client(KEY, f"http://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(CallError) as failed:
            client.find("first", 0.3)
        assert failed.value.kind is Kind.NO_ANSWER
        for thread in set(threading.enumerate()) - before - {server}:
            thread.join(10)
            assert not thread.is_alive(), thread.name
        is_over.set()


def test_negative_counts_of_tokens_count_as_none():
    usage = {"promptTokenCount": -5, "candidatesTokenCount": -7, "thoughtsTokenCount": 3}
    answer = Answer(body=json.dumps({**BEST, "usageMetadata": usage}).encode())
    with Recorder(lambda seen: answer) as server:
        tokens = Client(KEY, server.url).generate("first", "the prompt", 10.0, 100).tokens
    assert (tokens.prompt, tokens.output) == (0, 3)
