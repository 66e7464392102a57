"""The `vllm` command with what the tests need on a CPU.

vLLM's LoRA of experts requires Triton. It is left out here: an adapter of the attention has none. The engine is forked
from the server, instead of importing everything anew.
"""

import multiprocessing
from functools import partial

from vllm.entrypoints.cli.main import main
from vllm.lora import model_manager
from vllm.v1.engine import utils

_with_lora = model_manager.get_supported_lora_modules


def _drop_experts(model) -> list[str]:
    return [name for name in _with_lora(model) if name != "experts"]


if __name__ == "__main__":
    model_manager.get_supported_lora_modules = _drop_experts
    utils.get_mp_context = partial(multiprocessing.get_context, "fork")
    main()
