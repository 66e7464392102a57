import asyncio
import zlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo import adapter, sync
from grpo.engine import SyncError, load_into_engine


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 7)), min_size=1, max_size=6))
def test_flat_form_round_trips(shapes):
    tensors = [torch.randn(shape, dtype=torch.bfloat16) for shape in shapes]
    names = [f"t{i}" for i in range(len(tensors))]
    flat, specs = adapter.flatten(names, tensors)
    assert flat.dtype == torch.uint8
    assert flat.numel() == 2 * sum(t.numel() for t in tensors)
    back = adapter.unflatten(flat, specs)
    assert all(torch.equal(back[name], tensor) for name, tensor in zip(names, tensors, strict=True))


def receipt(**changes):
    return {"rank": 0, "checksum": 7, "tensors": 32} | changes


def test_right_receipts_pass():
    sync._check([[receipt(), receipt(rank=1)], [receipt()]], checksum=7, count=32)


@pytest.mark.parametrize("wrong", [{"checksum": 8}, {"tensors": 31}])
def test_a_wrong_receipt_stops_the_run(wrong):
    with pytest.raises(SyncError, match="engine 1, worker 1"):
        sync._check([[receipt()], [receipt(), receipt(rank=1, **wrong)]], checksum=7, count=32)


class Engine:
    """The two methods of vLLM's AsyncLLM that a sync calls; `cache_reset` is what its reset answers."""

    def __init__(self, cache_reset: bool) -> None:
        self.cache_reset = cache_reset

    async def collective_rpc(self, method, args):
        assert method == "load_adapter"
        return [receipt(checksum=zlib.crc32(args[0]))]

    async def reset_prefix_cache(self):
        return self.cache_reset


def test_the_engine_passes_bytes_on_and_drops_its_prefix_cache():
    data = torch.arange(100, dtype=torch.uint8).numpy()
    assert asyncio.run(load_into_engine(Engine(True), data, []))[0]["checksum"] == zlib.crc32(data)
    with pytest.raises(SyncError, match="prefix cache"):
        asyncio.run(load_into_engine(Engine(False), data, []))
