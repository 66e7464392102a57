"""The actor computes the load-balancing loss of an MoE in every forward pass, although its coefficient is 0."""

import sys
import tempfile
from typing import Any

import torch
from openrlhf.models import Actor
from transformers.models.mixtral import MixtralConfig, MixtralForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "num_local_experts": 2,
}  # fmt: skip

with tempfile.TemporaryDirectory() as folder:
    MixtralForCausalLM(MixtralConfig(**SIZES)).save_pretrained(folder)
    actor = Actor(folder, attn_implementation="eager")  # --actor.aux_loss_coef is 0 by default
output = actor.model(torch.arange(8)[None])
if output.router_logits is not None:
    sys.exit(f"router logits and a balancing loss of {output.aux_loss.item():.3f} were computed")
