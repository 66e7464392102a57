"""A judge against a server with Gemini's API: real HTTP, google-genai's real client."""

import asyncio
import contextlib
import importlib.util
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import reward.reward_func as module
from reward.chain import Chain
from reward.gemini import Client
from reward.judge import Judge
from reward.settings import ChainSettings, JudgeSettings

from .gemini_server import KEY, GeminiServer

MODELS = ("first", "second", "third")
FILE = Path(module.__file__)
SETTINGS = {
    "JUDGE": "1", "JUDGE_MODELS": " ".join(MODELS), "CORRECTNESS_WEIGHT": "0.6", "QUALITY_WEIGHT": "0.4",
    "JUDGE_FALLBACK": "correctness", "JUDGE_UNFINISHED": "1", "JUDGE_TRIES": "2", "JUDGE_DEADLINE": "20",
    "JUDGE_CALL_TIMEOUT": "10", "JUDGE_RPM": "1000", "JUDGE_CONCURRENCY": "8",
}  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def no_certificates() -> Iterator[None]:
    """No server here speaks TLS, and each client would read all certificates."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl.SSLContext, "load_verify_locations", lambda *arguments, **options: None)
        yield


@pytest.fixture
def serve() -> Iterator[Callable[..., GeminiServer]]:
    """Start servers, and stop them after the test."""
    with contextlib.ExitStack() as servers:
        yield lambda *plan, **options: servers.enter_context(GeminiServer(*plan, **options))


@pytest.fixture
def run() -> Iterator[Callable]:
    """Run a coroutine in the event loop of this test."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture
def make_chain() -> Callable[..., Chain]:
    """Make a chain that asks a server; settings of the chain by name."""

    def make(server: GeminiServer, **changes: object) -> Chain:
        values = {"models": MODELS, "tries": 3, "deadline": 20.0, "call_timeout": 10.0, "concurrency": 32}
        settings = ChainSettings(**(values | {"requests_per_window": 1000} | changes))  # type: ignore[arg-type]
        return Chain(settings, Client(KEY, server.url))

    return make


@pytest.fixture
def make_judge(tmp_path: Path, make_chain) -> Callable[..., Judge]:
    """Make a judge that asks a server; settings of the chain by name."""

    def make(server: GeminiServer, fallback: str = "correctness", **changes: object) -> Judge:
        settings = JudgeSettings(make_chain(server, **changes).settings, 0.6, 0.4, fallback, True)
        return Judge(settings, tmp_path / "judge.jsonl", Chain(settings.chain, Client(KEY, server.url)))

    return make


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., ModuleType]:
    """Load reward_func.py by its path, as each engine does, with a key and these settings; variables by name."""

    def begin(server: GeminiServer | None, key: str | None = KEY, **changes: str) -> ModuleType:
        for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GRPO_JUDGE_STAND_IN", "GRPO_JUDGE_BASE_URL"):
            monkeypatch.delenv(name, raising=False)
        for name, value in (SETTINGS | changes).items():
            monkeypatch.setenv(f"GRPO_{name}", value)
        monkeypatch.setenv("GRPO_RUN_DIR", str(tmp_path))
        if server:
            monkeypatch.setenv("GRPO_JUDGE_BASE_URL", server.url)
        if key:
            monkeypatch.setenv("GEMINI_API_KEY", key)
        spec = importlib.util.spec_from_file_location("reward_func", FILE)
        assert spec and spec.loader
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded

    return begin
