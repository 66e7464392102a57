"""The tensors of a model in the format of gpt-oss's files, for checkpoints that tests make."""

from collections.abc import Iterator

import torch
from transformers import GptOssForCausalLM

from grpo.model import mxfp4

EXPERT_WEIGHTS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")


def packed_tensors(model: GptOssForCausalLM) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a checkpoint file in name order: experts as MXFP4, all else as bf16."""
    for name, value in sorted(model.state_dict().items()):
        if name.endswith(EXPERT_WEIGHTS):
            blocks, scales = mxfp4.quantize(value.detach())
            yield f"{name}_blocks", blocks
            yield f"{name}_scales", scales
        else:
            yield name, value.detach().to(torch.bfloat16).contiguous()
