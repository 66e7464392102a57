"""The adapter's layers outside of vLLM; tests/stack/test_agreement.py runs it in engines, one of them compiled."""

import os
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import psutil
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from vllm.config import DeviceConfig, VllmConfig
from vllm.platforms import current_platform
from vllm.v1.worker.gpu_worker import Worker

from grpo.lora import adapter, vllm_lora

from .recorded_pass import RecordedPass
from .workers_attention import (
    ADDITIONAL,
    SIZES,
    WorkersAttention,
    draw_adapter,
    draw_inputs,
    draw_weights,
)


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return draw_weights()


def test_an_adapter_of_zeros_changes_nothing_and_one_of_q_and_v_leaves_k(weights):
    x, _ = draw_inputs(11)
    attention = WorkersAttention(weights)
    base = attention.qkv_proj(x)
    assert torch.equal(base, torch.nn.functional.linear(x, attention.qkv_proj.weight))
    values = draw_adapter(weights)
    attention.load(values)
    attention.load({name: each for name, each in values.items() if name[0] in "qv"})
    changed = (attention.qkv_proj(x) != base).split(list(SIZES.values()), -1)
    assert [part.any().item() for part in changed] == [True, False, True]


def test_a_layer_takes_two_products_beside_that_of_its_frozen_weight(weights):
    attention, inputs = WorkersAttention(weights), draw_inputs(3)
    with RecordedPass() as recorded:
        attention(*inputs)
    assert recorded.launches == ["mm", "mm", "addmm_"] * 2


def test_a_recorded_pass_follows_the_adapter(weights):
    """As a CUDA graph must: a sync writes to the addresses that it has recorded."""
    attention, inputs = WorkersAttention(weights), draw_inputs(3)
    addresses = attention.list_addresses()
    with RecordedPass() as recorded:
        results = attention(*inputs)
    for _ in range(2):
        before = [result.clone() for result in results]
        attention.load(draw_adapter(weights))
        for given, new in zip(inputs, draw_inputs(3), strict=True):
            given.copy_(new)
        recorded.replay()
        for result, old, now in zip(results, before, attention(*inputs), strict=True):
            assert torch.equal(result, now) and not torch.equal(result, old)
    assert attention.list_addresses() == addresses


def test_a_compiled_layer_is_one_graph_that_follows_the_adapter(weights, monkeypatch):
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "0")
    backend, attention = CompileCounterWithBackend("aot_eager"), WorkersAttention(weights)
    with torch._dynamo.config.patch(disable=False), torch.inference_mode():
        compiled = torch.compile(attention.qkv_proj, fullgraph=True, backend=backend)
        for tokens in (3, 5, 7):
            x, _ = draw_inputs(tokens)
            torch._dynamo.mark_dynamic(x, 0)
            attention.load(draw_adapter(weights))
            assert torch.equal(compiled(x), attention.qkv_proj(x))
    assert backend.frame_count == 1, "a sync compiles the layer again"


def test_compiled_models_in_vllms_cache_have_this_code(weights, monkeypatch):
    """A model that was compiled without one, or with another version's, would ignore the adapter."""

    def compute_key(digest: str | None) -> str:
        config = VllmConfig(device_config=DeviceConfig("cpu"), additional_config=dict(ADDITIONAL))
        if digest:
            monkeypatch.setattr(vllm_lora, "code_digest", lambda: digest)
            WorkersAttention(weights, config=config)
        return config.compute_hash()

    assert len({compute_key(None), compute_key("this version"), compute_key("another")}) == 3
    assert compute_key("this version") == compute_key("this version")


def test_a_workers_memory_is_that_of_its_process_or_the_peak_of_its_gpu_since_the_last_sync(monkeypatch):
    held = torch.zeros(2**26)
    assert vllm_lora.held_memory(held.device) == pytest.approx(psutil.Process(os.getpid()).memory_info().rss, rel=0.1)
    peak = {1: 7}  # stands in for the allocator of GPU 1
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak[device.index])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: peak.update({device.index: 3}))
    device = torch.device("cuda", 1)
    assert [vllm_lora.held_memory(device), vllm_lora.held_memory(device)] == [7, 3]


def test_sleep_leaves_a_base_that_the_actor_maps(monkeypatch):
    # vLLM's build for GPUs loads its allocator only beside a driver; its build for CPUs has none.
    monkeypatch.setitem(sys.modules, "vllm.cumem_allocator", None)
    from vllm.device_allocator import cumem

    allocator = SimpleNamespace(use_memory_pool=lambda tag: tag, get_current_usage=lambda: 0)
    monkeypatch.setattr(cumem.CuMemAllocator, "get_instance", lambda: allocator)
    monkeypatch.setattr(type(current_platform), "is_cuda_alike", lambda _: True)
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda _: False)
    model = SimpleNamespace(enable_sleep_mode=True, enable_cumem_allocator=True)

    def get_pool(additional: dict[str, str], tag: str) -> object:
        config = SimpleNamespace(model_config=model, additional_config=additional)
        return Worker._maybe_get_memory_pool_context(SimpleNamespace(vllm_config=config), tag)

    assert isinstance(get_pool({adapter.SHARED: "model"}, "weights"), nullcontext)
    assert get_pool({adapter.SHARED: "model"}, "kv_cache") == "kv_cache"
    assert get_pool({}, "weights") == "weights"
