"""What the tests of the chain share: a key, a form, and what was asked of whom."""

from pydantic import BaseModel, Field

from reward.chain import Chain
from reward.stand_in import Fault, StandIn

KEY = "AIza-not-a-real-key-0123456789"


class Form(BaseModel):
    number: int = Field(ge=0, le=3)


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
