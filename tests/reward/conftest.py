"""A judge against the local stand-in for Gemini: real HTTP, google-genai's real client."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reward.chain import Chain, connect
from reward.gemini import Client
from reward.judge import Judge
from reward.settings import STAND_IN_KEY, JudgeSettings
from reward.shared_state import SharedState
from reward.stand_in import StandIn

from .chains import chain_settings

MODELS = ("first", "second", "third")


@pytest.fixture
def serve() -> Iterator[Callable[..., StandIn]]:
    """Start stand-ins, and stop them after the test."""
    servers: list[StandIn] = []

    def start(**options: object) -> StandIn:
        servers.append(StandIn(**options))  # type: ignore[arg-type]
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def state(tmp_path: Path) -> SharedState:
    return SharedState(tmp_path / "judge.sqlite")


@pytest.fixture
def make_judge(tmp_path: Path) -> Callable[..., Judge]:
    """Make a judge that asks a stand-in; settings of the chain by name."""

    def make(server: StandIn, fallback: str = "correctness", **settings: object) -> Judge:
        models = settings.pop("models", MODELS)
        chain = chain_settings(*models, **({"deadline": 20.0, "call_timeout": 10.0} | settings))  # type: ignore[misc]
        state = SharedState(tmp_path / "judge.sqlite")
        return Judge(JudgeSettings(chain, 0.6, 0.4, fallback, True), state, connect(chain, state, None, server.url))

    return make


@pytest.fixture
def make_chain(tmp_path: Path) -> Callable[..., Chain]:
    """Make a chain that asks a stand-in; settings of the chain by name."""

    def make(server: StandIn, key: str | None = None, **settings: object) -> Chain:
        models = settings.pop("models", MODELS)
        values = {"deadline": 20.0, "call_timeout": 10.0} | settings
        state = SharedState(tmp_path / "judge.sqlite")
        return Chain(chain_settings(*models, **values), state, Client(key or STAND_IN_KEY, server.url))

    return make
