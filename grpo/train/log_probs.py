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

from grpo.model.experts import fused
from grpo.model.footprint import SCORED_TOKENS
from grpo.model.vocabulary import Allocated

_IMPOSSIBLE = -1e30  # a logit without probability; -inf would make an entropy NaN


class TokenScores(NamedTuple):
    """What a pass tells about tokens, fp32, of one shape each.

    Attributes:
        log_probs: of the target at the sampling temperature over the allocated rows, nat.
        entropy: of the policy at the sampling temperature, nat.
        unallocated: probability of the other rows before they are masked; without a gradient.
    """

    log_probs: torch.Tensor
    entropy: torch.Tensor
    unallocated: torch.Tensor


@contextlib.contextmanager
def scoring(model: Any, targets: torch.Tensor, kept: Allocated | None, temperature: float) -> Iterator[None]:
    """Within the context, ``model`` returns scores where it returns logits otherwise: fp32 ``[B, kept, 3]``.

    lm_head computes them in its own forward pass, since ZeRO-3 gathers its weight for that.

    Args:
        model: a causal language model of transformers, also as wrapped by PEFT or DeepSpeed.
        targets: the token after each position that has scores, long ``[B, kept]``.
        kept: the allocated rows of the vocabulary; None for all.
    """
    # DeepSpeed's engine does not pass on what PEFT's model passes on itself.
    head = getattr(model, "module", model).get_output_embeddings()

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        weight = head.weight
        of_tokens = token_scores(
            hidden.flatten(0, 1), weight, targets.flatten(), kept or Allocated(len(weight)), temperature
        )
        return torch.stack(of_tokens, dim=-1).view(*targets.shape, len(of_tokens))

    head.forward = forward
    try:
        yield
    finally:
        del head.forward  # of the instance: the class's own comes back


def read_scores(returned: torch.Tensor, sequences: torch.Tensor) -> TokenScores:
    """Return what a model returned in :func:`scoring` as scores ``[B, S]``, with zeros on the left.

    Args:
        returned: ``[B, kept, 3]``.
        sequences: ``[B, S]``.
    """
    padded = nn.functional.pad(returned, (0, 0, sequences.shape[1] - returned.shape[1], 0))
    log_probs, entropy, unallocated = padded.unbind(-1)
    return TokenScores(log_probs, entropy, unallocated.detach())


def token_scores(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    kept: Allocated,
    temperature: float = 1.0,
) -> TokenScores:
    """Return the scores of ``targets``. The weight is frozen: only ``hidden`` gets a gradient.

    Args:
        hidden: after the last norm, ``[tokens, H]``.
        weight: of lm_head, ``[V, H]``.
        targets: long ``[tokens]``.
        kept: the allocated rows of the vocabulary.
    """
    reserved = torch.tensor(kept.reserved, dtype=torch.long, device=hidden.device)
    return TokenScores(*_Scores.apply(hidden, weight, targets, kept.rows, reserved, temperature))


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
    ) -> tuple[torch.Tensor, ...]:
        parts = []
        for part, target in zip(hidden.split(SCORED_TOKENS), targets.split(SCORED_TOKENS), strict=True):
            logits = nn.functional.linear(part, weight)
            parts.append(_score(logits, target, rows, reserved, temperature))
        log_probs, entropy, unallocated, log_sum = map(torch.cat, zip(*parts, strict=True))
        ctx.save_for_backward(hidden, weight, targets, reserved, entropy, log_sum)
        ctx.options = rows, temperature
        ctx.mark_non_differentiable(unallocated)  # a metric
        return log_probs, entropy, unallocated

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, reserved, *saved = ctx.saved_tensors
        result = torch.empty_like(hidden)
        for start in range(0, len(hidden), SCORED_TOKENS):
            part = slice(start, start + SCORED_TOKENS)
            logits = nn.functional.linear(hidden[part], weight)
            of_part = [values[part] for values in (targets, gradients[0], gradients[1], *saved)]
            # No gradient of the weight: LoRA leaves lm_head frozen, and its gradient would be as large as the weight.
            torch.mm(_d_logits(logits, reserved, *of_part, *ctx.options), weight, out=result[part])
        return result, None, None, None, None, None


def _select_logits(logits: torch.Tensor, rows: int, reserved: torch.Tensor) -> torch.Tensor:
    """Return the logits of the first rows, fp32, without a chance for the reserved ones."""
    is_reserved = (torch.arange(rows, device=logits.device).unsqueeze(-1) == reserved).any(-1)
    return logits[:, :rows].to(torch.float32, copy=True).masked_fill_(is_reserved, _IMPOSSIBLE)


@fused
def _score(
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


@fused
def _d_logits(
    logits: torch.Tensor,
    reserved: torch.Tensor,
    targets: torch.Tensor,
    d_log_probs: torch.Tensor,
    d_entropy: torch.Tensor,
    entropy: torch.Tensor,
    log_sum: torch.Tensor,
    rows: int,
    temperature: float,
) -> torch.Tensor:
    """Return the gradient with respect to a chunk's logits, ``[tokens, V]`` in their dtype.

    That of a log-prob is ``1 - p`` at the target and ``-p`` elsewhere; that of an entropy is ``-p (log p + entropy)``.
    """
    log_p = _select_logits(logits, rows, reserved) / temperature - log_sum.unsqueeze(-1)
    row = torch.arange(rows, device=logits.device)
    chosen = (row == targets.unsqueeze(-1)) * d_log_probs.unsqueeze(-1)
    others = d_log_probs.unsqueeze(-1) + d_entropy.unsqueeze(-1) * (log_p + entropy.unsqueeze(-1))
    result = (chosen - log_p.exp() * others) / temperature
    return nn.functional.pad(result.to(logits.dtype), (0, logits.shape[1] - rows))  # unallocated rows move nothing
