"""Records inside a vLLM worker which experts each token got.

For --routing_replay the choice is made here, before vLLM's kernel, which then sees only the chosen experts' logits: all
others are -inf. Any kernel must therefore take what is recorded, also the kernels that choose by themselves. vLLM's own
flag (``enable_return_routed_experts``) misses those, and returns zeros without an error. For the parity gate, the
choice is only noted, in the passes of requests that it has named, so that it compares what a run computes.

A layer writes its choice to its own buffer, at a fixed address, so captured graphs write there too. After each
forward pass, the recorder copies the buffers and notes for each request which token was fed at which position. A
request that finds its prompt in the prefix cache did not compute these positions. The recorder therefore also keeps the
choices by slot of the KV cache: a request that reuses a slot gets the choices with which it was computed.
"""

import importlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.model_executor.layers import fused_moe
from vllm.model_executor.models.gpt_oss import MLPBlock
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from grpo.lora.adapter import ALL, RECORDS, read_engine_config
from grpo.lora.vllm_expert_lora import find_weights
from grpo.model.routing import encode
from grpo.stack.problem import UserError
from grpo.stack.upstream import ROLLOUT

KNOWN_MXFP4 = ("MARLIN", "TRITON")  # names of vLLM's backends


# Whether the choices of the forward pass that runs in this process are noted. The model's layers know no scheduler.
now = SimpleNamespace(is_noted=False)


def choose(logits: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Note each token's experts, and return logits that leave a kernel no other choice.

    Args:
        logits: of the router, ``[T, E]``.
        chosen: uint8 ``[at least T, k]``, gets the choice in the form of :mod:`grpo.model.routing`.
    """
    values, experts = logits.topk(chosen.shape[1], dim=-1)
    chosen[: len(logits)] = encode(experts)
    return torch.full_like(logits, -torch.inf).scatter(1, experts, values)


def prepare(experts: Any, config: VllmConfig) -> None:
    """Give the experts of a layer, a module of vLLM, the buffer for their tokens' choices.

    Raises:
        UserError: if this engine's choices cannot be recorded, but all passes should be.
    """
    faults = []
    if getattr(config, "use_v2_model_runner", False):  # into which the recorder does not reach
        faults.append("the second model runner (VLLM_USE_V2_MODEL_RUNNER)")
    backend = getattr(find_weights(experts).quant_method, "mxfp4_backend", None)
    if backend is not None and backend.name not in KNOWN_MXFP4:
        faults.append(f"the MXFP4 kernels {backend.name}, whose handling of excluded experts is not known")
    if faults and _records_all(config):
        raise UserError(f"--routing_replay does not work with {' and '.join(faults)}", "give --no-routing_replay")
    if faults:
        return
    size = config.scheduler_config.max_num_batched_tokens, experts.moe_config.experts_per_token
    experts.register_buffer("chosen", torch.zeros(size, dtype=torch.uint8), persistent=False)
    experts.is_bound = _records_all(config)  # its kernel must take what is noted


@dataclass
class Call:
    """What one request was fed, from its first position on.

    Attributes:
        tokens: int32 arrays, one after the other.
        choices: uint8 ``[n, layers, k]`` for each of them.
        length: how many tokens they hold.
    """

    tokens: list[np.ndarray] = field(default_factory=list)
    choices: list[np.ndarray] = field(default_factory=list)
    length: int = 0

    def add(self, start: int, tokens: np.ndarray, choices: np.ndarray) -> None:
        """Add tokens from position ``start`` on, at most ``length``. What is known stays: tokens were sampled from it.

        A preempted request computes its positions again.
        """
        known = self.length - start
        if known < len(tokens):
            self.tokens.append(tokens[known:])
            self.choices.append(choices[known:])
            self.length = start + len(tokens)

    def as_bytes(self) -> tuple[bytes, bytes]:
        """Return tokens and choices as bytes."""
        return np.concatenate(self.tokens).tobytes(), np.concatenate(self.choices).tobytes()


class Recorder:
    """The record of one worker: of what its model runner feeds the model, and what is in its KV cache."""

    def __init__(self, runner: GPUModelRunner) -> None:
        model: Any = runner.model
        self._buffers = [layer.mlp.experts.chosen for layer in model.model.layers]
        groups = runner.kv_cache_config.kv_cache_groups
        # Groups of a sliding window drop the beginning of a long request.
        self._group = next(n for n, group in enumerate(groups) if isinstance(group.kv_cache_spec, FullAttentionSpec))
        self._slots = runner.kv_cache_config.num_blocks * groups[self._group].kv_cache_spec.block_size
        self.clear()

    @property
    def shape(self) -> tuple[int, int]:
        """Return layers and experts a token."""
        return len(self._buffers), self._buffers[0].shape[1]

    def clear(self) -> None:
        """Forget all requests, and what is in the KV cache."""
        # Memory is taken as it is written.
        self._tokens = np.zeros(self._slots, dtype=np.int32)
        self._choices = np.zeros((self._slots, *self.shape), dtype=np.uint8)
        self._calls: dict[str, Call] = {}  # by request
        self._rollouts: dict[str, list[str]] = {}  # requests by rollout

    def is_asked(self, pass_: Any) -> bool:
        """Return whether a request of a pass, vLLM's ``SchedulerOutput``, is named."""
        begun = {request.req_id: request.sampling_params for request in pass_.scheduled_new_reqs}
        return any(
            request in self._calls or _rollout(begun.get(request)) is not None for request in pass_.num_scheduled_tokens
        )

    def note(self, runner: GPUModelRunner, scheduled: dict[str, int]) -> None:
        """Note the forward pass that just ended.

        Args:
            scheduled: how many tokens each request was fed.
        """
        batch = runner.input_batch
        requests = list(batch.req_ids)
        total = sum(scheduled[request] for request in requests)
        table = batch.block_table[self._group]
        slots = table.slot_mapping.gpu[:total].cpu().numpy()
        tokens = runner.input_ids.gpu[:total].cpu().numpy().copy()  # on a CPU, the next pass overwrites the view
        choices = torch.stack([buffer[:total] for buffer in self._buffers], dim=1).cpu().numpy()
        # First what the pass put into the cache: another request of the same pass may find it there.
        self._tokens[slots], self._choices[slots] = tokens, choices
        row = 0
        for number, request in enumerate(requests):
            first, row = row, row + scheduled[request]
            call = self._call(request, runner.requests[request].sampling_params)
            if call is None:
                continue
            start = int(batch.num_computed_tokens_cpu[number])
            if start > call.length:
                cached = np.arange(call.length, start)
                at = table.block_table.np[number, cached // table.block_size] * table.block_size
                at += cached % table.block_size
                call.add(call.length, self._tokens[at], self._choices[at])
            call.add(start, tokens[first:row], choices[first:row])

    def _call(self, request: str, params: Any) -> Call | None:
        rollout = _rollout(params)
        if rollout is None:
            return None
        if request not in self._calls:
            self._calls[request] = Call()
            self._rollouts.setdefault(rollout, []).append(request)
        return self._calls[request]

    def take(self, rollout: str) -> list[tuple[bytes, bytes]]:
        """Return the calls of a rollout in the order of their beginnings, and forget them."""
        return [self._calls.pop(request).as_bytes() for request in self._rollouts.pop(rollout, ())]


def _rollout(params: Any) -> str | None:
    """Return the rollout whose routing a request asks for."""
    return (params.extra_args or {}).get(ROLLOUT) if params is not None else None


class RecordingWorker:
    """Methods of a worker that ``collective_rpc`` calls."""

    def take_routing(self, rollouts: list[str]) -> dict[str, Any] | None:
        """Return what was recorded of rollouts; None from all workers but the first, which choose the same experts.

        Returns:
            ``shape``: layers and experts a token. ``calls``: for each rollout, the int32 tokens and the uint8 choices
            of each of its calls, as bytes.
        """
        recorder = _recorder(self.model_runner)  # type: ignore[attr-defined]
        if recorder is None:
            return None
        return {"shape": list(recorder.shape), "calls": [recorder.take(rollout) for rollout in rollouts]}

    def forget_routing(self) -> None:
        """Forget records that were not taken, for example of rollouts that ended with an error."""
        recorder = _recorder(self.model_runner)  # type: ignore[attr-defined]
        if recorder is not None:
            recorder.clear()


def _recorder(runner: GPUModelRunner) -> Recorder | None:
    """Return the recorder of a worker, made at its first use; None if this worker does not record."""
    if RECORDS not in read_engine_config(runner.vllm_config) or get_tensor_model_parallel_rank() != 0:
        return None
    model: Any = runner.model
    if not hasattr(model.model.layers[0].mlp.experts, "chosen"):
        return None
    if not hasattr(runner, "routing_recorder"):
        runner.routing_recorder = Recorder(runner)  # type: ignore[attr-defined]
    return runner.routing_recorder  # type: ignore[attr-defined]


def _records_all(config: VllmConfig) -> bool:
    return read_engine_config(config).get(RECORDS) == ALL


def _install_choice() -> None:
    """Patch the method that has a layer's hidden states and logits. In vLLM 0.29, a runner is the layer."""
    owner, method = getattr(fused_moe, "FusedMoE", None), "forward_impl"
    if owner is None:
        owner = importlib.import_module(f"{fused_moe.__name__}.runner.moe_runner").MoERunner
        method = "_forward_impl"
    original = getattr(owner, method)

    def forward_with_choice(layer: Any, hidden_states: Any, router_logits: torch.Tensor, *rest: Any) -> Any:
        if hasattr(layer, "chosen") and (layer.is_bound or now.is_noted):
            masked = choose(router_logits, layer.get_buffer("chosen"))
            router_logits = masked if layer.is_bound else router_logits
        return original(layer, hidden_states, router_logits, *rest)

    setattr(owner, method, forward_with_choice)


def install() -> None:
    """Patch vLLM's layers and its model runner to record, in engines that are configured for it."""
    original_block, original_runner = MLPBlock.__init__, GPUModelRunner.execute_model

    def init_with_buffer(self: MLPBlock, *args: Any, **kwargs: Any) -> None:
        original_block(self, *args, **kwargs)
        config = get_current_vllm_config()
        if RECORDS in read_engine_config(config):
            prepare(self.experts, config)

    def execute_with_record(self: GPUModelRunner, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = _recorder(self) if scheduler_output.total_num_scheduled_tokens else None
        now.is_noted = recorder is not None and (_records_all(self.vllm_config) or recorder.is_asked(scheduler_output))
        result = original_runner(self, scheduler_output, *args, **kwargs)
        if recorder is not None and now.is_noted:
            recorder.note(self, scheduler_output.num_scheduled_tokens)
        return result

    _install_choice()
    MLPBlock.__init__ = init_with_buffer  # type: ignore[method-assign]
    GPUModelRunner.execute_model = execute_with_record  # type: ignore[method-assign]
