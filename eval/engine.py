"""vLLM's offline engine for an evaluation: the model, the adapter beside it, and samples as they finish.

The code of training draws samples and conversations, from an event loop. The engine stays in this process: a step of it
holds up the loop as long as a token takes.
"""

import asyncio
import atexit
import os
import shutil
import uuid
from argparse import Namespace
from collections.abc import AsyncGenerator, Sequence
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from grpo.checkpoint import adapter_files
from grpo.checkpoint.adapter_files import Adapter
from grpo.launch.supervise.processes import RunFolder
from grpo.lora import expert_form
from grpo.lora.adapter import Checksums, TensorSpec, layout
from grpo.lora.sync import check_sync
from grpo.model.architecture import Architecture
from grpo.model.model_files import Model
from grpo.model.shared_base import MemoryFile
from grpo.rollout.budgeted_rollout import budgeted_response
from grpo.rollout.engine import arguments
from grpo.rollout.thinking import Budget, Delimiter
from grpo.rollout.trajectory import Origin
from grpo.stack import rendezvous


class LoopedLLM:
    """Stands in for vLLM's ``AsyncLLM``, over vLLM's ``LLMEngine``."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._waiting: dict[str, asyncio.Queue[Any]] = {}
        self._steps: asyncio.Task[None] | None = None

    async def generate(self, prompt: Any, params: Any, /, request_id: str) -> AsyncGenerator[Any, None]:
        """Yield the outputs of one request, as they come; closing them early aborts it."""
        outputs: asyncio.Queue[Any] = asyncio.Queue()
        self._engine.add_request(request_id, prompt, params)
        self._waiting[request_id] = outputs
        if self._steps is None or self._steps.done():
            self._steps = asyncio.create_task(self._step())
        is_over = False
        try:
            while not is_over:
                output = await outputs.get()
                if isinstance(output, Exception):
                    raise output
                is_over = output.finished
                yield output
        finally:
            if self._waiting.pop(request_id, None) is not None:
                self._engine.abort_request([request_id])

    async def _step(self) -> None:
        try:
            while self._waiting:
                for output in self._engine.step():
                    if outputs := self._waiting.get(output.request_id):
                        outputs.put_nowait(output)
                        if output.finished:
                            del self._waiting[output.request_id]
                await asyncio.sleep(0)
        except Exception as error:  # every request gets it, and ends the evaluation
            waiting, self._waiting = self._waiting, {}
            for outputs in waiting.values():
                outputs.put_nowait(error)


class LoopedEngine:
    """Stands in for OpenRLHF's ``LLMRayActor``, over vLLM's ``LLMEngine``."""

    def __init__(self, engine: Any) -> None:
        self.llm = LoopedLLM(engine)

    async def generate(self, prompt_token_ids: Sequence[int], sampling_params: Any) -> Any:
        """Return the last output of one request."""
        prompt = {"prompt_token_ids": list(prompt_token_ids)}
        last = None
        async for output in self.llm.generate(prompt, deepcopy(sampling_params), request_id=uuid.uuid4().hex):
            last = output
        return last


def start(model: Model, adapter: Adapter | None, options: Namespace, has_calls: bool) -> Any:
    """Return vLLM's ``LLM`` with the adapter loaded, as in a training run's engines.

    Args:
        options: of the command line. How the engine runs affects no sample, except through bf16 rounding.
        has_calls: whether a sample takes several calls, whose prompts have the same beginning.

    Raises:
        grpo.lora.sync.SyncError: if a worker did not receive or apply the whole adapter.
    """
    # Run the engine in this process: a kill leaves no process holding a GPU, and requests have a fixed order.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # stdout is for the result
    os.environ.update(rendezvous.variables(meeting_place()))
    from vllm import LLM

    configuration: dict[str, Any] = {}
    if adapter:
        base = Architecture.from_config(model.config)
        ranks = {"lora_rank": adapter.rank, "expert_rank": adapter.find_expert_rank(base)}
        configuration = ranks | {"lora_scale": adapter.scale}
    # Gloo prints a line for each connection of its ranks to stdout. If the engine does not start, nothing else comes.
    stdout = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    llm = LLM(
        model=str(model.folder),
        dtype="bfloat16",
        tensor_parallel_size=options.tensor_parallel,
        max_model_len=options.max_model_len,
        gpu_memory_utilization=options.gpu_memory_utilization,
        enforce_eager=options.eager,
        # The batch in which a cached prefix was computed differs from run to run, and so would its rounding: see
        # `draw`.
        enable_prefix_caching=has_calls,
        use_tqdm_on_load=False,
        worker_extension_cls="grpo.lora.vllm_lora.AdapterWorker",
        additional_config=configuration,
        **arguments(sequences=options.batch),
    )
    os.dup2(stdout, 1)
    if adapter:
        load_adapter(llm, adapter, base)
    return llm


def meeting_place() -> Path:
    """Return a folder for the engine's ranks. What a kill leaves of it, the next evaluation or run deletes."""
    folder = RunFolder().path  # this process holds its lock to its end
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder / "rendezvous"


def load_adapter(llm: Any, adapter: Adapter, base: Architecture) -> None:
    """Load an adapter into an engine that has generated nothing yet."""
    flat, specs = flatten(adapter, base)
    memory = MemoryFile(flat.nbytes, "grpo-adapter")
    memory.map_for_writing().copy_(flat.view(torch.uint8))
    results = llm.collective_rpc("load_adapter", args=(memory.path, [asdict(spec) for spec in specs]))
    check_sync([results], Checksums.of(flat, specs))


def flatten(adapter: Adapter, base: Architecture) -> tuple[torch.Tensor, list[TensorSpec]]:
    """Return an adapter's tensors as one, bf16 ``[elements]`` as in training, and the location of each in it."""
    stored, parameters, tensors = adapter_files.load(adapter), base.parameters(), {}
    for module in adapter_files.pairs(adapter):
        for name in (adapter_files.tensor_name(module, half) for half in adapter_files.HALVES):
            shape = parameters[expert_form.name_parameter(module)]
            tensors[name] = expert_form.from_file(name, stored[name], shape)
    specs = layout(tensors, [tensor.shape for tensor in tensors.values()])
    return torch.cat([tensor.to(torch.bfloat16).reshape(-1) for tensor in tensors.values()]), specs


async def draw(
    engine: LoopedEngine,
    prompt: list[int],
    seed: int,
    sampling: dict[str, Any],
    thinking: tuple[Delimiter, Budget] | None = None,
) -> tuple[list[int], str, dict[str, float]]:
    """Draw one response.

    Returns its tokens, with the stop token and any forced delimiter; why it ended, which under a budget says whether
    the answer was cut; and under a budget what a run logs of a rollout, with `response_length`, its sampled tokens.

    Args:
        prompt: its tokens.
        sampling: temperature, top_p and max_tokens.
        thinking: what ends the thinking, and the budget; None for one limit.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    # No log-probs: if a thought has left the cache, the delimiter's would require those of all of its tokens.
    params = SamplingParams(
        **sampling,
        min_tokens=1,
        seed=seed,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_reading_prefix_cache=True,  # only second calls read it, so the thinking equals that without a budget
    )
    if thinking:
        room = len(prompt) + sampling["max_tokens"]
        rollout = await budgeted_response(engine.llm, prompt, params, *thinking, room)
        logs = rollout.logs() | {"response_length": float(rollout.trajectory.count(Origin.SAMPLED))}
        return rollout.response, "length" if rollout.is_truncated else "stop", logs
    [sample] = (await engine.generate(prompt, params)).outputs
    return list(sample.token_ids), sample.finish_reason, {}
