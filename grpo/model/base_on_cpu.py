"""A stand-in for an engine's base on a CPU: vLLM's own model and loader for MXFP4, without its kernels.

vLLM has no kernels for MXFP4 on a CPU, so an engine there samples with a copy in bf16. This holds what an engine on a
GPU would hold besides: the tensors that vLLM's loader makes of an MXFP4 checkpoint.
"""

import functools
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.quantization import mxfp4
from vllm.model_executor.model_loader.weight_utils import safetensors_weights_iterator
from vllm.model_executor.models.gpt_oss import GptOssForCausalLM
from vllm.transformers_utils.config import get_config
from vllm.utils.torch_utils import set_default_torch_dtype

from grpo.model import engine_base, model_files, shared_base
from grpo.stack.hub import downloaded_folder


@functools.cache  # the result keeps the memory
def _load(folder: Path) -> tuple[Any, shared_base.MemoryFile]:
    """Return vLLM's model, and the read-only memory in which its parameters lie."""
    model = _build(folder)
    shards = [str(shard) for shard in model_files.read(folder).shards]
    weights = safetensors_weights_iterator(shards, use_tqdm_on_load=False)
    with torch.no_grad():
        return model, shared_base.seal_parameters(model, lambda: model.load_weights(weights))


def describe(model: str) -> shared_base.Description:
    """Describe the base of a model, which this process owns from the first call on. vLLM's groups exist already."""
    loaded, memory = _load(downloaded_folder(model))
    return shared_base.describe(engine_base.list_tensors(loaded), memory)


def configure(model: object) -> VllmConfig:
    """Return an engine's configuration, as far as vLLM's classes for gpt-oss with MXFP4 experts read it."""
    config = VllmConfig(device_config=DeviceConfig("cpu"))
    described: Any = SimpleNamespace(
        hf_config=model,
        dtype=torch.bfloat16,
        head_dtype=torch.bfloat16,
        is_mm_prefix_lm=False,
        enable_return_routed_experts=False,
        quantization_config=None,
        skip_tokenizer_init=True,
    )
    config.model_config, config.quant_config = described, getattr(mxfp4, "GptOssMxfp4Config", mxfp4.Mxfp4Config)()
    return config


def _build(folder: Path) -> Any:
    """Return vLLM's model with parameters that were never touched, so they take no memory."""
    config = configure(get_config(folder, trust_remote_code=False))
    model: Any = GptOssForCausalLM
    with set_current_vllm_config(config), set_default_torch_dtype(torch.bfloat16), _choose_triton():
        return model(vllm_config=config)


def _choose_triton() -> AbstractContextManager[object]:
    """Let vLLM take the experts' kernels of Hopper, which it does not find on a CPU."""
    module: Any = mxfp4
    if hasattr(module, "get_mxfp4_backend"):
        return mock.patch.object(module, "get_mxfp4_backend", lambda _: module.Mxfp4Backend.TRITON)
    chosen = module.Mxfp4MoeBackend.TRITON, None  # from vLLM 0.29 on it also says which kernels
    return mock.patch.object(module, "select_mxfp4_moe_backend", lambda _: chosen)
