"""vLLM's offline engine for an evaluation: the model, the adapter beside it, and samples as they finish."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from grpo.adapter import Receipt, TensorSpec, layout
from grpo.adapter_files import WEIGHTS, Adapter
from grpo.engine import SharedMemory, check_receipts, seeding_arguments


@dataclass(frozen=True)
class EngineOptions:
    """How the engine runs; what is sampled does not depend on it, except for the rounding of bf16.

    Attributes:
        max_model_len: tokens of the longest prompt with its response.
        gpu_memory_utilization: the share of each GPU's memory that the engine takes.
        batch: how many samples are computed at a time; None for vLLM's default.
        eager: no CUDA graphs and no torch.compile, as in training.
    """

    tensor_parallel: int
    max_model_len: int
    gpu_memory_utilization: float
    batch: int | None
    eager: bool


def start(model: Path, adapter: Adapter | None, options: EngineOptions) -> Any:
    """Return vLLM's ``LLM`` with the adapter in it, the way a training run has it in its engines.

    Raises:
        grpo.engine.SyncError: where a worker did not receive or apply the whole adapter.
    """
    # The engine in this process: a kill leaves no process that holds a GPU, and requests have a fixed order.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # stdout is for the result
    from vllm import LLM

    llm = LLM(
        model=str(model),
        dtype="bfloat16",
        tensor_parallel_size=options.tensor_parallel,
        max_model_len=options.max_model_len,
        gpu_memory_utilization=options.gpu_memory_utilization,
        enforce_eager=options.eager,
        max_num_seqs=options.batch,
        # What a cached prefix was computed beside differs from run to run, and so would its rounding.
        enable_prefix_caching=False,
        worker_extension_cls="grpo.side_path.AdapterWorker",
        additional_config={"lora_rank": adapter.rank, "lora_scale": adapter.scale} if adapter else {},
        **seeding_arguments(),
    )
    if adapter:
        load_adapter(llm, adapter)
    return llm


def load_adapter(llm: Any, adapter: Adapter) -> None:
    """Bring an adapter into the side paths of an engine that has generated nothing yet."""
    flat, specs = flatten(adapter)
    memory = SharedMemory(flat.nbytes)
    memory.bytes[:] = flat.view(torch.uint8).numpy()
    receipts = llm.collective_rpc("load_adapter", args=(memory.path, [asdict(spec) for spec in specs]))
    check_receipts([receipts], Receipt.of(flat, specs))


def flatten(adapter: Adapter) -> tuple[torch.Tensor, list[TensorSpec]]:
    """Return an adapter's tensors as one, bf16 ``[elements]`` as in training, and where each of them lies in it."""
    tensors = load_file(adapter.folder / WEIGHTS)
    specs = layout(tensors, [tensor.shape for tensor in tensors.values()])
    return torch.cat([tensor.to(torch.bfloat16).reshape(-1) for tensor in tensors.values()]), specs


@dataclass(frozen=True)
class Request:
    """One sample to draw: a prompt's tokens, a seed, and whatever tells the caller which one it is."""

    key: Any
    prompt: list[int]
    seed: int


def generate(
    llm: Any, requests: Iterable[Request], temperature: float, top_p: float, max_tokens: int
) -> Iterator[tuple[Request, list[int], str]]:
    """Yield each sample when it is finished: its request, its tokens (with the stop token), vLLM's finish reason.

    All requests are with the engine at once, which takes the next one whenever one is finished.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    waiting = {}
    for number, request in enumerate(requests):
        params = SamplingParams(
            temperature=temperature,
            top_p=top_p,
            max_tokens=max_tokens,
            min_tokens=1,
            seed=request.seed,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        llm.llm_engine.add_request(str(number), {"prompt_token_ids": request.prompt}, params)
        waiting[str(number)] = request
    while llm.llm_engine.has_unfinished_requests():
        for output in llm.llm_engine.step():
            if output.finished:
                sample = output.outputs[0]
                yield waiting.pop(output.request_id), list(sample.token_ids), sample.finish_reason
