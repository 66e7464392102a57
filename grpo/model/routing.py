"""Lets the trainer's routers take the experts that the engine chose for the same tokens.

Near a tie, rounding decides which experts a router chooses, and trainer and engine round differently. The recorded
choice replaces the trainer's own. The weights of the experts still come from the trainer's logits, a softmax over the
chosen ones, so gradients reach what the logits depend on.

A routing is uint8 ``[S, layers, k]`` for S tokens: the chosen experts plus 1. 0 means that no choice is known, as for
padding and for the last token, which no engine computes; there the router makes its own choice.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts, GptOssTopKRouter

# A router of transformers 4 returns weights of all experts, zero for those not chosen, and the choice. From 5 on it
# returns its logits, weights of the chosen experts, and the choice.
WEIGHS_CHOSEN = hasattr(GptOssExperts, "_apply_gate")  # which transformers 5 has


def encode(experts: torch.Tensor) -> torch.Tensor:
    """Return chosen experts in the form of a routing: uint8, and 0 stays free."""
    return (experts + 1).to(torch.uint8)


def format_router_weights(weights: torch.Tensor, indices: torch.Tensor, experts: int) -> torch.Tensor:
    """Return weights of chosen experts, ``[T, k]``, as a router of the installed transformers returns them."""
    if WEIGHS_CHOSEN:
        return weights
    return weights.new_zeros(len(weights), experts).scatter(1, indices, weights)


@dataclass
class Replay:
    """What the routers did with recorded choices.

    Attributes:
        known: the tokens with a record.
        differing: of each call of a router, at how many of them it would have chosen other experts by itself; scalar
            tensors, so that a layer does not wait for its device.
    """

    known: int
    differing: list[torch.Tensor] = field(default_factory=list)

    def counts(self) -> tuple[int, int]:
        """Return how many choices would have differed, and how many were replayed."""
        return sum(int(count) for count in self.differing), self.known * len(self.differing)


@contextlib.contextmanager
def replay_choices(
    model: nn.Module, routings: Sequence[torch.Tensor] | None, length: int, device: torch.device | str
) -> Iterator[Replay | None]:
    """Let the routers of ``model`` take recorded choices within the context, also when layers are recomputed.

    Args:
        routings: of each row of the micro-batch; None changes nothing.
        length: the tokens of a row with its padding.

    Raises:
        ValueError: if a routing does not fit the model.
    """
    if routings is None:
        yield None
        return
    routers = [module for module in model.modules() if isinstance(module, GptOssTopKRouter)]
    padded = _pad_routings(routings, length, routers)
    replay = Replay(known=int((padded[:, 0, 0] > 0).sum()))  # a record covers all layers, or none
    padded = padded.to(device)
    for number, router in enumerate(routers):
        router.forward = partial(_forward, router, padded[:, number], replay)  # type: ignore[method-assign]
    try:
        yield replay
    finally:
        for router in routers:
            del router.forward  # the class's own again


def _pad_routings(routings: Sequence[torch.Tensor], length: int, routers: Sequence[GptOssTopKRouter]) -> torch.Tensor:
    """Return the routings of rows as one, uint8 ``[B * length, layers, k]``."""
    layers, chosen = len(routers), routers[0].top_k
    padded = torch.zeros(len(routings), length, layers, chosen, dtype=torch.uint8)
    for row, routing in zip(padded, routings, strict=True):
        if routing.shape[1:] != (layers, chosen):
            raise ValueError(
                f"a routing of {routing.shape[1]} layers and {routing.shape[2]} experts a token does not fit the "
                f"actor, which has {layers} layers and {chosen} experts a token: engines and actor load other models"
            )
        row[: len(routing)] = routing
    return padded.flatten(0, 1)


def _forward(
    router: GptOssTopKRouter, recorded: torch.Tensor, replay: Replay, hidden_states: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return logits, weights and choices as ``GptOssTopKRouter.forward`` does, with the recorded choices.

    Args:
        recorded: uint8 ``[B * L, k]``.
        replay: gets a count.
        hidden_states: ``[B, L, H]``.
    """
    logits = nn.functional.linear(hidden_states.reshape(-1, router.hidden_dim), router.weight, router.bias)
    own = logits.topk(router.top_k, dim=-1).indices
    chosen = torch.where(recorded > 0, recorded.long() - 1, own)
    replay.differing.append((own.sort().values != chosen.sort().values).any(-1).sum())
    values, order = logits.gather(1, chosen).topk(router.top_k, dim=-1)  # in the order of the router's own choice
    indices = chosen.gather(1, order)
    weights = format_router_weights(values.softmax(dim=1, dtype=values.dtype), indices, router.num_experts)
    return (logits, weights, indices) if WEIGHS_CHOSEN else (weights, indices)
