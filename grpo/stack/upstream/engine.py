"""The engine: OpenRLHF's Ray actor around vLLM, and vLLM's asynchronous engine in it.

vLLM ships types, so its parameters and outputs are its own classes.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from ray import ObjectRef
    from vllm.inputs import TokensPrompt
    from vllm.model_executor.layers.linear import LinearMethodBase
    from vllm.outputs import RequestOutput
    from vllm.sampling_params import SamplingParams

ROLLOUT = "routing_of"  # in a request's extra_args: the rollout whose choices of experts our worker records


class Outputs(Protocol):
    """The outputs of one request as they come."""

    def __aiter__(self) -> "AsyncIterator[RequestOutput]": ...
    async def aclose(self) -> None: ...


class Streams(Protocol):
    """An engine that streams: vLLM's ``AsyncLLM``, or :class:`eval.engine.LoopedLLM`."""

    def generate(self, prompt: "TokensPrompt", params: "SamplingParams", /, request_id: str) -> Outputs: ...


class AsyncLLM(Streams, Protocol):
    """vLLM's ``AsyncLLM``."""

    async def collective_rpc(self, method: str, *, args: Sequence[Any] = ()) -> list[Any]: ...
    @property
    def errored(self) -> bool: ...
    async def reset_prefix_cache(self) -> bool: ...


class Engine(Protocol):
    """``LLMRayActor`` inside its own process."""

    llm: AsyncLLM

    async def generate(self, prompt_token_ids: Sequence[int], sampling_params: "SamplingParams") -> "RequestOutput": ...


class LinearLayer(Protocol):
    """A linear layer of vLLM in a worker.

    Attributes:
        quant_method: applies the layer's weight.
        lora_A, lora_B: the adapter's buffers, see :class:`grpo.lora.vllm_lora.LoraLinearMethod`.
    """

    quant_method: "LinearMethodBase"
    lora_A: "torch.Tensor"
    lora_B: "torch.Tensor"

    def parameters(self) -> "Iterator[torch.nn.Parameter]": ...
    def register_buffer(self, name: str, tensor: "torch.Tensor", persistent: bool) -> None: ...


class Attention(Protocol):
    """vLLM's attention module of gpt-oss in a worker; sizes are those of the worker's part."""

    qkv_proj: LinearLayer
    o_proj: LinearLayer
    q_size: int
    kv_size: int
    hidden_size: int


class Experts(Protocol):
    """vLLM's experts of a layer in a worker.

    Attributes:
        quant_method: computes them.
        moe_config: vLLM's, with the worker's ``tp_rank`` of ``tp_size``.
        w13_bias, w2_bias: of the worker's part, ``[E, 2I]`` and ``[E, H]``.
        inner_part: of the intermediate size, what the worker has.
        expert_rank, lora_gate_up_A, lora_gate_up_B, lora_down_A, lora_down_B: the adapter's rank and buffers, see
            :func:`grpo.lora.vllm_expert_lora.attach`.
    """

    quant_method: Any
    hidden_size: int
    moe_config: Any
    top_k: int
    w13_bias: "torch.Tensor"
    w2_bias: "torch.Tensor"
    inner_part: slice
    expert_rank: int
    lora_gate_up_A: "torch.Tensor"
    lora_gate_up_B: "torch.Tensor"
    lora_down_A: "torch.Tensor"
    lora_down_B: "torch.Tensor"

    def register_buffer(self, name: str, tensor: "torch.Tensor", persistent: bool) -> None: ...


class RemoteMethod(Protocol):
    """A method of a Ray actor."""

    def remote(self, *args: Any, **kwargs: Any) -> "ObjectRef[Any]": ...


class EngineActor(Protocol):
    """A handle of ``LLMRayActor``.

    Attributes:
        _actor_id: Ray's id of the actor.
        load_adapter, describe_base: added by the patch ``ppo_actor``; call those of ``vllm_engine``.
        sampled: added by the patch ``pipeline``; calls ``vllm_engine.sampled``.
    """

    _actor_id: Any
    generate_responses: RemoteMethod
    get_num_unfinished_requests: RemoteMethod
    load_adapter: RemoteMethod
    describe_base: RemoteMethod
    sampled: RemoteMethod
    wake_up: RemoteMethod
    sleep: RemoteMethod
