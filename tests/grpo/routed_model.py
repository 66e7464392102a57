"""A small model with routers, and routings for its tokens."""

import torch
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter

from grpo.model import routing

LAYERS, EXPERTS, CHOSEN, ROWS, LENGTH = 3, 8, 2, 2, 7
TOKENS = torch.arange(ROWS * LENGTH).view(ROWS, LENGTH) % 50


def make_small_model(dtype=torch.float32, seed=0):
    config = GptOssConfig(
        num_hidden_layers=LAYERS, num_local_experts=EXPERTS, num_experts_per_tok=CHOSEN, hidden_size=32, head_dim=8,
        intermediate_size=32, num_attention_heads=4, num_key_value_heads=2, vocab_size=50, sliding_window=4,
    )  # fmt: skip
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    return GptOssForCausalLM(config).to(dtype).train()


def compute_own_choices(model, tokens=TOKENS):
    """The logits, and the choices of each row's tokens as a routing, from transformers' own routers."""
    seen = []
    routers = [module for module in model.modules() if isinstance(module, GptOssTopKRouter)]
    handles = [router.register_forward_hook(lambda _, __, out: seen.append(out[-1])) for router in routers]
    logits = model(tokens).logits
    for handle in handles:
        handle.remove()
    return logits, list(routing.encode(torch.stack(seen, dim=1).view(*tokens.shape, LAYERS, CHOSEN)))


def draw_choices(generator_seed=3):
    """Any distinct experts for each token, as routings."""
    generator = torch.Generator().manual_seed(generator_seed)
    scores = torch.rand(ROWS, LENGTH, LAYERS, EXPERTS, generator=generator)
    return list(routing.encode(scores.topk(CHOSEN).indices))


def spread_weights(weights, indices, experts=EXPERTS):
    """A router's weights as one for each expert, ``[T, experts]``."""
    if not routing.WEIGHS_CHOSEN:
        return weights
    return torch.zeros(len(weights), experts, dtype=weights.dtype).scatter(1, indices, weights)
