"""Shared by the tests of the chain: a key, a schema, and the models of the requests."""

from pydantic import BaseModel, Field

from reward.settings import ChainSettings

from .faulty import Fault, StandIn

KEY = "AIza-not-a-real-key-0123456789"


class Form(BaseModel):
    number: int = Field(ge=0, le=3)


def make_chain_settings(*models: str, **changes: object) -> ChainSettings:
    """Settings with limits that no test reaches."""
    values = {"tries": 3, "deadline": 240.0, "call_timeout": 90.0, "concurrency": 32}
    limits = {"requests_per_window": 120, "tokens_per_window": 1_000_000}
    return ChainSettings(models, **(values | limits | changes))  # type: ignore[arg-type]


def fail_first(fault: Fault):
    """A plan in which everything goes wrong with the first model."""
    return lambda number, model: fault if model == "first" else None


def list_asked_models(server: StandIn) -> list[str]:
    return [request.model for request in server.requests]
