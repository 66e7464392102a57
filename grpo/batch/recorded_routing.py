"""The engine's choice of experts for each row, on its way from the responses to the forward passes.

``routing`` of an ``Experience`` is a list: for each row, uint8 ``[S, layers, k]`` of :mod:`grpo.model.routing`, without
padding. Rows of a run without ROUTING_REPLAY lack it; while the parity gate is closed, their rollouts have the same as
``engine_routing``, which no pass of training replays.
"""

from typing import Any

import torch

from grpo.rollout.routing import KEY
from grpo.rollout.rows import Rows, Sample


def get_routings(rows: Rows) -> list[torch.Tensor] | None:
    """Return the routings of rows; None if they were not recorded."""
    return getattr(rows, "routing", None)


def attach(row: Sample, response: dict[str, Any], is_replayed: bool) -> str | None:
    """Give a row the routing of its response; name the first token without one that a later token depends on.

    Args:
        row: ``Experience`` of one rollout, which OpenRLHF may have cut.
        response: of an agent executor.
        is_replayed: whether training replays it; otherwise no token needs one.
    """
    if KEY not in response:
        return None
    routing = torch.tensor(response[KEY][: row.sequences.shape[1]])
    if not is_replayed:
        row.engine_routing = routing
        return None
    row.routing = [routing]
    # The last token predicts nothing.
    missing = (routing[:-1] == 0).flatten(1).any(dim=1).nonzero()
    if len(missing) and not response.get("is_empty"):
        return f"the engine recorded no routing for the token at position {int(missing[0])}"
    return None
