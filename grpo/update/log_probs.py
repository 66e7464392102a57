"""Log-probs and entropy of tokens from hidden states, without the logits of a whole sequence.

Logits of 8192 tokens over gpt-oss's 201,088 rows take 6.6 GB in fp32, and training would hold them several times. Here
the logits of a chunk exist while it is computed, and the backward pass computes them again. Memory does not grow with
length times vocabulary.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from grpo.model.fused import fused
from grpo.model.sizes import SCORED_TOKENS
from grpo.model.vocabulary import Allocated

_IMPOSSIBLE = -1e30  # a logit without probability; -inf would make an entropy NaN


class TokenScores(NamedTuple):
    """What a pass tells about tokens, fp32, of one shape each.

    Attributes:
        log_probs: of the target at the sampling temperature over the allocated rows, nat.
        loss_entropy: of the policy at temperature 1, nat, for OpenRLHF's entropy loss; zeros if nothing uses it.
        entropy: of the policy at the sampling temperature, nat; without a gradient.
        unallocated: probability of the other rows before they are masked; without a gradient.
    """

    log_probs: torch.Tensor
    loss_entropy: torch.Tensor
    entropy: torch.Tensor
    unallocated: torch.Tensor


@contextlib.contextmanager
def scoring(
    model: Any, targets: torch.Tensor, kept: Allocated | None, temperature: float, loss_entropy: bool
) -> Iterator[None]:
    """Within the context, ``model`` returns scores where it returns logits otherwise: fp32 ``[B, kept, 4]``.

    lm_head computes them in its own forward pass, since ZeRO-3 gathers its weight for that.

    Args:
        model: a causal language model of transformers, also as wrapped by PEFT or DeepSpeed.
        targets: the token after each position that has scores, long ``[B, kept]``.
        kept: the allocated rows of the vocabulary; None for all.
        temperature, loss_entropy: see :func:`token_scores`.
    """
    # DeepSpeed's engine does not pass on what PEFT's model passes on itself.
    head = getattr(model, "module", model).get_output_embeddings()

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        weight = head.weight
        of_tokens = token_scores(
            hidden.flatten(0, 1), weight, targets.flatten(), kept or Allocated(len(weight)), temperature, loss_entropy
        )
        return torch.stack(of_tokens, dim=-1).view(*targets.shape, len(of_tokens))

    head.forward = forward
    try:
        yield
    finally:
        del head.forward


def scores(returned: torch.Tensor, sequences: torch.Tensor) -> TokenScores:
    """Return what a model returned in :func:`scoring` as scores ``[B, S]``, with zeros on the left.

    Args:
        returned: ``[B, kept, 4]``.
        sequences: ``[B, S]``.
    """
    columns = [pad_left(column, sequences) for column in returned.unbind(-1)]
    return TokenScores(columns[0], columns[1], columns[2].detach(), columns[3].detach())


def pad_left(values: torch.Tensor, sequences: torch.Tensor) -> torch.Tensor:
    """Return ``values`` of the last positions, ``[B, kept]``, padded on the left with zeros to match ``sequences``."""
    return nn.functional.pad(values, (sequences.shape[1] - values.shape[1], 0))


def token_scores(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    kept: Allocated,
    temperature: float = 1.0,
    loss_entropy: bool = False,
) -> TokenScores:
    """Return the scores of ``targets``. The weight is frozen: only ``hidden`` gets a gradient.

    Args:
        hidden: after the last norm, ``[tokens, H]``.
        weight: of lm_head, ``[V, H]``.
        targets: long ``[tokens]``.
        kept: the allocated rows of the vocabulary.
        temperature: the sampling temperature.
        loss_entropy: whether the entropy at temperature 1 is computed, and takes part in the gradient.
    """
    reserved = torch.tensor(kept.reserved, dtype=torch.long, device=hidden.device)
    return TokenScores(*_Scores.apply(hidden, weight, targets, kept.rows, reserved, temperature, loss_entropy))


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        rows: int,
        reserved: torch.Tensor,
        temperature: float,
        loss_entropy: bool,
    ) -> tuple[torch.Tensor, ...]:
        parts = []
        for part, target in zip(hidden.split(SCORED_TOKENS), targets.split(SCORED_TOKENS), strict=True):
            logits = nn.functional.linear(part, weight)
            scaled = _score_at_temperature(logits, target, rows, reserved, temperature)
            parts.append((*scaled, *_score_at_one(logits, rows, reserved, loss_entropy)))
        log_probs, entropy, unallocated, log_sum, entropy_at_one, log_sum_at_one = map(
            torch.cat, zip(*parts, strict=True)
        )
        ctx.save_for_backward(hidden, weight, targets, reserved, log_sum, entropy_at_one, log_sum_at_one)
        ctx.options = rows, temperature, loss_entropy
        ctx.mark_non_differentiable(entropy, unallocated)
        return log_probs, entropy_at_one, entropy, unallocated

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, reserved, *saved = ctx.saved_tensors
        result = torch.empty_like(hidden)
        for start in range(0, len(hidden), SCORED_TOKENS):
            part = slice(start, start + SCORED_TOKENS)
            logits = nn.functional.linear(hidden[part], weight)
            of_part = [values[part] for values in (targets, gradients[0], gradients[1], *saved)]
            torch.mm(_d_logits(logits, reserved, *of_part, *ctx.options), weight, out=result[part])
        return result, None, None, None, None, None, None


def _select_logits(logits: torch.Tensor, rows: int, reserved: torch.Tensor) -> torch.Tensor:
    """Return the logits of the first rows, fp32, without a chance for the reserved ones."""
    is_reserved = (torch.arange(rows, device=logits.device).unsqueeze(-1) == reserved).any(-1)
    return logits[:, :rows].to(torch.float32, copy=True).masked_fill_(is_reserved, _IMPOSSIBLE)


@fused
def _score_at_temperature(
    logits: torch.Tensor, targets: torch.Tensor, rows: int, reserved: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, ...]:
    """Return log-prob, entropy, unallocated probability and log-sum-exp of a chunk."""
    scaled = _select_logits(logits, rows, reserved) / temperature
    log_sum = scaled.logsumexp(-1)
    log_probs = scaled.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - log_sum
    log_p = scaled - log_sum.unsqueeze(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    others = (torch.cat([logits[:, rows:], logits[:, reserved]], -1).float() / temperature).logsumexp(-1)
    return log_probs, entropy, torch.sigmoid(others - log_sum), log_sum


def _score_at_one(
    logits: torch.Tensor, rows: int, reserved: torch.Tensor, used: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return entropy and log-sum-exp of a chunk at temperature 1; zeros if they are not used."""
    if not used:
        zeros = logits.new_zeros(len(logits), dtype=torch.float32)
        return zeros, zeros
    plain = _select_logits(logits, rows, reserved)
    log_sum = plain.logsumexp(-1)
    log_p = plain - log_sum.unsqueeze(-1)
    return -(log_p.exp() * log_p).sum(-1), log_sum


@fused
def _d_logits(
    logits: torch.Tensor,
    reserved: torch.Tensor,
    targets: torch.Tensor,
    d_log_probs: torch.Tensor,
    d_entropy: torch.Tensor,
    log_sum: torch.Tensor,
    entropy_at_one: torch.Tensor,
    log_sum_at_one: torch.Tensor,
    rows: int,
    temperature: float,
    loss_entropy: bool,
) -> torch.Tensor:
    """Return the gradient with respect to a chunk's logits, ``[tokens, V]`` in their dtype.

    That of a log-prob is ``1 - p`` at the target and ``-p`` elsewhere; that of an entropy is ``-p (log p + entropy)``.
    """
    plain = _select_logits(logits, rows, reserved)
    row = torch.arange(rows, device=logits.device)
    chosen = (row == targets.unsqueeze(-1)) * d_log_probs.unsqueeze(-1)
    p = (plain / temperature - log_sum.unsqueeze(-1)).exp()
    result = (chosen - d_log_probs.unsqueeze(-1) * p) / temperature
    if loss_entropy:
        log_p = plain - log_sum_at_one.unsqueeze(-1)
        result = result - d_entropy.unsqueeze(-1) * log_p.exp() * (log_p + entropy_at_one.unsqueeze(-1))
    return nn.functional.pad(result.to(logits.dtype), (0, logits.shape[1] - rows))
