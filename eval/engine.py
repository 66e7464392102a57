"""vLLM's offline engine for an evaluation: the model, the adapter beside it, and samples as they finish."""

import atexit
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from eval.stepped import Stepped, run
from grpo.checkpoint import adapter_files
from grpo.checkpoint.adapter_files import Adapter
from grpo.launch.supervise import base_dir
from grpo.lora.adapter import Receipt, TensorSpec, layout
from grpo.lora.engine_actor import SharedMemory, check_receipts
from grpo.rollout.budgeted_rollout import Rollout, budgeted_response
from grpo.rollout.engine import arguments
from grpo.rollout.thinking import Budget, Delimiter
from grpo.rollout.trajectory import Origin
from grpo.stack import rendezvous


@dataclass(frozen=True)
class EngineOptions:
    """How the engine runs; it does not affect the samples, except through bf16 rounding.

    Attributes:
        max_model_len: tokens of the longest prompt with its response.
        gpu_memory_utilization: the share of each GPU's memory that the engine takes.
        batch: the number of samples computed at a time; None for vLLM's default.
        eager: no CUDA graphs and no torch.compile, as in training.
        prefix_caching: cache the prefix for the second call of a sample whose thinking was cut.
    """

    tensor_parallel: int
    max_model_len: int
    gpu_memory_utilization: float
    batch: int | None
    eager: bool
    prefix_caching: bool = False


def start(model: Path, adapter: Adapter | None, options: EngineOptions) -> Any:
    """Return vLLM's ``LLM`` with the adapter loaded, as in a training run's engines.

    Raises:
        grpo.lora.engine_actor.SyncError: if a worker did not receive or apply the whole adapter.
    """
    # Run the engine in this process: a kill leaves no process holding a GPU, and requests have a fixed order.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # stdout is for the result
    os.environ.update(rendezvous.variables(meeting_place()))
    from vllm import LLM

    llm = LLM(
        model=str(model),
        dtype="bfloat16",
        tensor_parallel_size=options.tensor_parallel,
        max_model_len=options.max_model_len,
        gpu_memory_utilization=options.gpu_memory_utilization,
        enforce_eager=options.eager,
        max_num_seqs=options.batch,
        # The batch in which a cached prefix was computed differs from run to run, and so would its rounding: see
        # `generate`.
        enable_prefix_caching=options.prefix_caching,
        worker_extension_cls="grpo.lora.side_path.AdapterWorker",
        additional_config={"lora_rank": adapter.rank, "lora_scale": adapter.scale} if adapter else {},
        **arguments(),
    )
    if adapter:
        load_adapter(llm, adapter)
    return llm


def meeting_place() -> Path:
    """Return a folder for the engine's ranks. What a kill leaves of it, the next evaluation or run deletes."""
    folder, _ = base_dir.make()  # this process holds its lock to its end
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder / "rendezvous"


def load_adapter(llm: Any, adapter: Adapter) -> None:
    """Load an adapter into the side paths of an engine that has generated nothing yet."""
    flat, specs = flatten(adapter)
    memory = SharedMemory(flat.nbytes)
    memory.bytes[:] = flat.view(torch.uint8).numpy()
    receipts = llm.collective_rpc("load_adapter", args=(memory.path, [asdict(spec) for spec in specs]))
    check_receipts([receipts], Receipt.of(flat, specs))


def flatten(adapter: Adapter) -> tuple[torch.Tensor, list[TensorSpec]]:
    """Return an adapter's tensors as one, bf16 ``[elements]`` as in training, and the location of each in it."""
    tensors = adapter_files.load(adapter)
    specs = layout(tensors, [tensor.shape for tensor in tensors.values()])
    return torch.cat([tensor.to(torch.bfloat16).reshape(-1) for tensor in tensors.values()]), specs


@dataclass(frozen=True)
class Request:
    """One sample to draw: a prompt's tokens, a seed, and the caller's key for it."""

    key: Any
    prompt: list[int]
    seed: int


@dataclass(frozen=True)
class Sample:
    """One response.

    Attributes:
        tokens: the response, with the stop token and any forced delimiter.
        finish_reason: vLLM's; under a budget it says whether the answer was cut.
        logs: under a budget, what a run logs of a rollout: `Rollout.logs`, and `response_length`, its sampled tokens.
    """

    tokens: list[int]
    finish_reason: str
    logs: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, rollout: Rollout) -> "Sample":
        """Return the response of a rollout under a budget."""
        logs = rollout.logs() | {"response_length": float(rollout.trajectory.count(Origin.SAMPLED))}
        return cls(rollout.response, "length" if rollout.is_truncated else "stop", logs)


def generate(
    llm: Any,
    requests: Sequence[Request],
    sampling: dict[str, Any],
    thinking: tuple[Delimiter, Budget] | None = None,
) -> Iterator[tuple[Request, Sample]]:
    """Yield each sample when it is finished.

    The engine gets all requests at once and starts the next one whenever one finishes. Under a thinking budget it gets
    only as many as it computes at a time. Otherwise a second call would wait behind others while its thought leaves the
    cache.

    Args:
        sampling: temperature, top_p and max_tokens.
        thinking: what ends the thinking, and the budget; None for one limit.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    engine = Stepped(llm.llm_engine)

    async def draw(request: Request) -> Sample:
        # No log-probs: if a thought has left the cache, the delimiter's would require those of all of its tokens.
        params = SamplingParams(
            **sampling,
            min_tokens=1,
            seed=request.seed,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_reading_prefix_cache=True,  # only second calls read it, so the thinking equals that without a budget
        )
        if thinking is None:
            return await _whole(engine, request, params)
        room = len(request.prompt) + sampling["max_tokens"]
        return Sample.of(await budgeted_response(engine, request.prompt, params, *thinking, room))

    most = llm.llm_engine.vllm_config.scheduler_config.max_num_seqs if thinking else None
    yield from run(llm.llm_engine, ((request, draw(request)) for request in requests), most)


async def _whole(engine: Stepped, request: Request, params: Any) -> Sample:
    stream = engine.generate({"prompt_token_ids": request.prompt}, params, uuid.uuid4().hex)
    [sample] = [output.outputs[0] async for output in stream]
    return Sample(list(sample.token_ids), sample.finish_reason)
