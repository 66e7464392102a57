"""Where the key goes, and what never shows it: for any server, and any environment."""

import asyncio
import logging
import signal
import socket
from unittest.mock import MagicMock

import pytest
import ray

from reward import judge_actor, settings
from reward.chain import connect
from reward.gemini import CallError, Client, find_missing, serve_stand_in
from reward.settings import GOOGLE_URL, STAND_IN_KEY, ChainSettings

from .gemini_server import KEY, Answer, error
from .harmony import PROMPT, RIGHT

ASK = {
    "generate": lambda client: client.generate(ChainSettings(("first",), 1, 9, 9, 9, 9), "first", 9.0, "p", None, None),
    "find": lambda client: client.find("first"),
}
PROXIES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


@pytest.fixture(autouse=True)
def looked_up(monkeypatch) -> list[str]:
    """The names that are looked up. Only loopback's resolves."""
    names, look_up = [], socket.getaddrinfo

    def resolve(host, *arguments, **options):
        if host in ("127.0.0.1", "localhost", b"127.0.0.1"):
            return look_up(host, *arguments, **options)
        names.append(host if isinstance(host, str) else host.decode())
        raise socket.gaierror(f"{host} is not looked up in tests")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr("reward.gemini.FIND_DELAY", 0.01)
    return names


def fail(run, ask: str, client: Client) -> CallError | None:
    try:
        run(ASK[ask](client))
    except CallError as failure:
        return failure
    return None


@pytest.mark.parametrize("backend", ["", "httpx", "httpx2"])
@pytest.mark.parametrize("ask", ASK)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(serve, run, monkeypatch, status, ask, backend) -> None:
    monkeypatch.setenv("GOOGLE_GENAI_HTTP_CLIENT", backend)
    foreign = serve()
    server = serve(lambda number, model: Answer(status, headers={"Location": f"{foreign.url}/models/first"}))
    failure = fail(run, ask, Client(KEY, server.url))
    assert failure and KEY not in str(failure) and not foreign.requests and not foreign.looked_up
    assert len(server.requests) + len(server.looked_up) == 1


@pytest.mark.parametrize("ask", ASK)
@pytest.mark.parametrize(
    "variables",
    [
        *({name: "PROXY"} for name in PROXIES),
        {"ALL_PROXY": "socks9://[not-a-proxy"},
        {"GOOGLE_GEMINI_BASE_URL": "PROXY", "GOOGLE_VERTEX_BASE_URL": "PROXY"},
        {"GOOGLE_GENAI_USE_VERTEXAI": "true", "GOOGLE_CLOUD_PROJECT": "p", "GOOGLE_CLOUD_LOCATION": "global"},
        {"GOOGLE_GENAI_API_VERSION": "v9"},
        {"GOOGLE_API_USE_CLIENT_CERTIFICATE": "true", "GOOGLE_API_USE_MTLS_ENDPOINT": "always"},
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_no_variable_sends_a_request_elsewhere(serve, run, monkeypatch, looked_up, variables, ask) -> None:
    server, proxy = serve(), serve()
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("PROXY", proxy.url))
    assert fail(run, ask, Client(KEY, server.url)) is None
    assert len(server.requests) + len(server.looked_up) == 1
    assert all(KEY in request.text for request in server.requests), "it is sent as a header"
    assert all(request.body["store"] is False for request in server.requests), "Google keeps no log of it"
    assert fail(run, ask, Client(KEY, GOOGLE_URL))
    assert not proxy.requests and not proxy.looked_up and set(looked_up) == {"generativelanguage.googleapis.com"}


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_the_key_is_in_no_log_error_or_file_even_if_the_server_repeats_it(
    serve, load, run, tmp_path, caplog, capfd, status
) -> None:
    answer = error(status, "you said {key}, I say {key}", "0.01s", ErrorInfo={"reason": "{key}"})
    server = serve(lambda number, model: answer)
    with caplog.at_level(logging.DEBUG):
        result = load(server, JUDGE_DEADLINE="3").reward_func([PROMPT + RIGHT], [PROMPT], ["7"])
        [*_, missing] = run(find_missing(["first"], KEY, server.url))
        failure = fail(run, "generate", Client(KEY, server.url))
    assert result["extra_logs"]["judge_failed"] == 1.0 and "<key>" in caplog.text
    for error_of_ours in (missing, failure):
        assert "<key>" in str(error_of_ours) and error_of_ours.__cause__ is None
    shown = caplog.text + "".join(capfd.readouterr()) + repr(missing) + repr(failure)
    shown += "".join(file.read_text() for file in tmp_path.rglob("*") if file.is_file())
    assert KEY not in shown


def test_a_refused_key_is_sent_once_and_logged_once_for_each_model(serve, load, caplog) -> None:
    server = serve(lambda number, model: error(400, "API key not valid", ErrorInfo={"reason": "API_KEY_INVALID"}))
    loaded = load(server)
    for _ in range(3):
        assert loaded.reward_func([PROMPT + RIGHT], [PROMPT], ["7"])["extra_logs"]["judge_failed"] == 1.0
    assert len(server.requests) == 1
    assert sum("fails and gets" in record.message for record in caplog.records) == 3


def test_the_stand_in_never_gets_the_key(serve, run) -> None:
    server = serve()
    run(connect(ChainSettings(("first",), 1, 9, 9, 9, 9), KEY, server.url).ask("How many?"))
    assert KEY not in server.requests[0].text and STAND_IN_KEY in server.requests[0].text


def test_ray_gets_the_keys_of_the_judge_as_the_argument_of_a_call_and_nothing_else(monkeypatch) -> None:
    """Ray shows runtime environments and an actor's arguments of creation; those of a call it does not."""
    monkeypatch.setattr(ray, "get", lambda call: None)
    monkeypatch.setattr(ray, "remote", remote := MagicMock())
    monkeypatch.setenv(judge_actor.VARIABLE, judge_actor.NAME)
    for name in (*settings.KEY_VARIABLES, "WANDB_API_KEY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"secret of {name}")
    judge_actor.start({})
    [(name, arguments, _)] = [call for call in remote.mock_calls if "secret" in repr(call)]
    assert name == "().options().remote().begin.remote"
    assert arguments == ({name: f"secret of {name}" for name in settings.KEY_VARIABLES},)


def test_it_knows_its_models_alone_and_takes_no_signal() -> None:
    client = Client("a key", serve_stand_in(["first"]))
    asyncio.run(client.find("first"))
    with pytest.raises(CallError):
        asyncio.run(client.find("second"))
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []), "signals reach the process as before"
