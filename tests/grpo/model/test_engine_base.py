"""The key/value cache of an engine on a CPU; tests/stack has the rest, in real engines."""

from types import SimpleNamespace

import psutil
import pytest
import torch

from grpo.model import engine_base


@pytest.fixture
def worker_class(monkeypatch):
    """vLLM's worker with 100 MB available for its cache, allocated as vLLM does: one int8 tensor."""
    cpu_worker = pytest.importorskip("vllm.v1.worker.cpu_worker")
    worker = cpu_worker.CPUWorker
    monkeypatch.setattr(worker, "determine_available_memory", lambda self: 10**8)
    monkeypatch.setattr(worker, "initialize_from_config", lambda self: torch.zeros(10**8, dtype=torch.int8))
    engine_base.bound_caches()
    return worker


@pytest.mark.parametrize(("sequences", "size"), [(64, 2 * 64 * 2 * 1000), (100_000, 10**8)])
def test_the_cache_holds_twice_what_its_sequences_need_or_what_is_available(worker_class, sequences, size):
    spec = SimpleNamespace(max_memory_usage_bytes=lambda config: 1000)
    worker = SimpleNamespace(
        model_runner=SimpleNamespace(get_kv_cache_spec=lambda: {"layer 0": spec, "layer 1": spec}),
        scheduler_config=SimpleNamespace(max_num_seqs=sequences),
        vllm_config=None,
    )
    assert worker_class.determine_available_memory(worker) == size


def test_the_cache_takes_memory_where_it_is_written(worker_class):
    before, zeros = psutil.Process().memory_info().rss, torch.zeros
    cache = worker_class.initialize_from_config(None)
    assert cache.dtype == torch.int8 and len(cache) == 10**8
    assert psutil.Process().memory_info().rss - before < 5e7
    assert not cache[::4096].any()
    cache[:1000] = 7
    assert cache[:1001].sum() == 7000
    assert torch.zeros is zeros
