"""A judge against the local stand-in for Gemini: real HTTP, google-genai's real client."""

import contextlib
import importlib.util
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import reward.reward_func as module
from reward.chain import Chain, connect
from reward.gemini import Client
from reward.judge import Judge
from reward.judgements import Judgements
from reward.settings import STAND_IN_KEY, JudgeSettings

from .chains import make_chain_settings
from .faulty import StandIn

MODELS = ("first", "second", "third")
FILE = Path(module.__file__)
SETTINGS = {
    "JUDGE": "1",
    "JUDGE_MODELS": " ".join(MODELS),
    "CORRECTNESS_WEIGHT": "0.6",
    "QUALITY_WEIGHT": "0.4",
    "JUDGE_FALLBACK": "correctness",
    "JUDGE_UNFINISHED": "1",
    "JUDGE_TRIES": "1",
    "JUDGE_DEADLINE": "20",
    "JUDGE_CALL_TIMEOUT": "10",
    "JUDGE_RPM": "1000",
    "JUDGE_TPM": "10000000",
    "JUDGE_CONCURRENCY": "8",
}


@pytest.fixture(scope="session", autouse=True)
def no_certificates() -> Iterator[None]:
    """No server here speaks TLS, and each client would read all certificates three times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl.SSLContext, "load_verify_locations", lambda *arguments, **options: None)
        yield


@pytest.fixture
def serve() -> Iterator[Callable[..., StandIn]]:
    """Start stand-ins, and stop them after the test."""
    with contextlib.ExitStack() as servers:
        yield lambda **options: servers.enter_context(StandIn(**options))  # type: ignore[arg-type]


@pytest.fixture
def make_judge(tmp_path: Path) -> Callable[..., Judge]:
    """Make a judge that asks a stand-in; settings of the chain by name."""

    def make(server: StandIn, fallback: str = "correctness", **settings: object) -> Judge:
        models = settings.pop("models", MODELS)
        chain = make_chain_settings(*models, **({"deadline": 20.0, "call_timeout": 10.0} | settings))  # type: ignore[misc]
        judgements = Judgements(tmp_path / "judge.sqlite")
        return Judge(JudgeSettings(chain, 0.6, 0.4, fallback, True), judgements, connect(chain, None, server.url))

    return make


@pytest.fixture
def make_chain() -> Callable[..., Chain]:
    """Make a chain that asks a stand-in; settings of the chain by name."""

    def make(server: StandIn, key: str | None = None, **settings: object) -> Chain:
        models = settings.pop("models", MODELS)
        values = {"deadline": 20.0, "call_timeout": 10.0} | settings
        return Chain(make_chain_settings(*models, **values), Client(key or STAND_IN_KEY, server.url))

    return make


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., ModuleType]:
    """Load reward_func.py by its path, as each engine does, with these settings; variables by name."""

    def begin(server: StandIn | None, **changes: str) -> ModuleType:
        for name, value in (SETTINGS | changes).items():
            monkeypatch.setenv(f"GRPO_{name}", value)
        monkeypatch.setenv("GRPO_RUN_DIR", str(tmp_path))
        for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GRPO_JUDGE_STAND_IN"):
            monkeypatch.delenv(name, raising=False)
        if server:
            monkeypatch.setenv("GRPO_JUDGE_STAND_IN", server.url)
        spec = importlib.util.spec_from_file_location("reward_func", FILE)
        assert spec and spec.loader
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded

    return begin
