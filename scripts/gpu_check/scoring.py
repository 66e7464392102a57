"""Log-probs through the model that the actor wraps; for rungs and for tests/gpu."""

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from grpo.model.vocabulary import Allocated


def add_adapter(model: Any, rank: int, scale: float, expert_rank: int = 0) -> Any:
    """Return a model in PEFT, with gradient checkpointing and a random adapter that is the same on every device.

    Args:
        expert_rank: of each expert; 0 for an adapter of the attention alone.
    """
    from peft import LoraConfig, get_peft_model

    from grpo.model import expert_lora
    from grpo.model.architecture import ATTENTION_PROJECTIONS, EXPERTS_TARGET

    model.enable_input_require_grads()
    targets = list(ATTENTION_PROJECTIONS)
    if expert_rank:
        expert_lora.attach(model, expert_rank)
        targets = expert_lora.list_target_modules([*targets, EXPERTS_TARGET])
    lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets)
    model = get_peft_model(model, lora, autocast_adapter_dtype=False)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            shape = getattr(parameter, "ds_shape", parameter.shape)
            parameter.data = (torch.randn(shape, generator=generator) * scale).to(parameter.device, torch.bfloat16)
    model.gradient_checkpointing_enable({"use_reentrant": True})
    return model.train()


def score_tokens(model: Any, ids: torch.Tensor, tokens: torch.Tensor, kept: "Allocated") -> torch.Tensor:
    """Return the log-probs of all tokens but the first, `[B, S - 1]`; zeros for padding.

    Args:
        ids: `[B, S]`.
        tokens: bool `[B, S]`, False for padding.
        kept: the allocated rows of the vocabulary.
    """
    from grpo.update import log_probs

    positions = (tokens.long().cumsum(-1) - 1).clamp(min=0)
    with log_probs.scoring(model, ids.roll(-1, 1), kept, 1.0):
        output = model(ids, attention_mask=tokens.long(), position_ids=positions)
    return log_probs.scores(output["logits"], ids).log_probs[:, :-1] * tokens[:, 1:]
