import asyncio
import os
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo import adapter
from grpo.engine import SharedMemory, SyncError, check_receipts, for_sample, load_into_engine


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 7)), min_size=1, max_size=6))
def test_flat_form_round_trips(shapes):
    tensors = {f"t{i}": torch.randn(shape, dtype=torch.bfloat16) for i, shape in enumerate(shapes)}
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors.values()])
    back = adapter.unflatten(flat, adapter.layout(tensors, [tensor.shape for tensor in tensors.values()]))
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


def checksum(flat: torch.Tensor) -> int:
    return adapter.Checksum(flat).finish()


def test_the_checksum_finds_changed_missing_and_swapped_data():
    torch.manual_seed(0)
    flat = torch.randn(5 * 4 * adapter.BLOCK_WORDS + 77, dtype=torch.bfloat16)
    expected = checksum(flat)
    assert expected == checksum(flat.clone())
    for place in (0, 12345, len(flat) - 1):
        changed = flat.clone()
        changed[place] = -changed[place]
        assert checksum(changed) != expected
    block = 4 * adapter.BLOCK_WORDS
    swapped = torch.cat([flat[block : 2 * block], flat[:block], flat[2 * block :]])
    assert checksum(swapped) != expected
    assert checksum(flat[:-1]) != expected
    assert checksum(flat[block:]) != expected


FLAT = torch.arange(5 * 4 * adapter.BLOCK_WORDS + 77).to(torch.bfloat16)


@given(st.lists(st.integers(0, FLAT.nbytes + 100), max_size=5))
def test_the_checksum_is_the_same_in_pieces(ends):
    pieces = adapter.Checksum(FLAT)
    for end in ends:
        pieces.take(end)
    assert pieces.finish() == checksum(FLAT)


def receipt(**changes):
    return {"rank": 0, "workers": 1, "checksum": 7, "tensors": 32} | changes


def test_right_receipts_pass():
    check_receipts([[receipt(workers=2), receipt(rank=1, workers=2)], [receipt()]], checksum=7, count=32)


@pytest.mark.parametrize("wrong", [{"checksum": 8}, {"tensors": 31}])
def test_a_wrong_receipt_stops_the_run(wrong):
    with pytest.raises(SyncError, match="engine 1, worker 1"):
        check_receipts([[receipt()], [receipt(workers=2), receipt(rank=1, workers=2, **wrong)]], checksum=7, count=32)


@pytest.mark.parametrize("workers", [[], [receipt(workers=2)], [receipt(workers=2), receipt(workers=2)]])
def test_a_missing_receipt_stops_the_run(workers):
    with pytest.raises(SyncError, match="engine 1 has no receipt"):
        check_receipts([[receipt()], workers], checksum=7, count=32)


class Engine:
    """The two methods of vLLM's AsyncLLM that a sync calls; `cache_reset` is what its reset answers."""

    def __init__(self, cache_reset: bool) -> None:
        self.cache_reset = cache_reset

    async def collective_rpc(self, method, args):
        assert method == "load_adapter"
        path, specs, offset = args
        assert specs == ["specs"]
        self.path = path
        return [receipt(checksum=zlib.crc32(Path(path).read_bytes()[offset : offset + 100]))]

    async def reset_prefix_cache(self):
        return self.cache_reset


def test_the_engine_passes_bytes_on_and_drops_its_prefix_cache():
    engine = Engine(True)
    for start in (0, 7):  # the second sync writes to the same memory
        data = torch.arange(start, start + 100, dtype=torch.uint8).numpy()
        assert asyncio.run(load_into_engine(engine, data, ["specs"]))[0]["checksum"] == zlib.crc32(data)
    with pytest.raises(SyncError, match="prefix cache"):
        asyncio.run(load_into_engine(Engine(False), data, ["specs"]))


def test_shared_memory_is_seen_by_another_process_and_gone_with_its_owner():
    memory = SharedMemory(4096)
    memory.bytes[:5] = list(b"hello")
    read = [sys.executable, "-c", "import sys; print(open(sys.argv[1], 'rb').read(5).decode())", memory.path]
    assert subprocess.run(read, capture_output=True, text=True, check=True).stdout == "hello\n"
    path = memory.path
    del memory
    with pytest.raises(FileNotFoundError):
        os.stat(path)


MAP_AND_FIND = """
import mmap, os, sys, time
import numpy as np
from grpo.engine import shared_place
descriptor, size = map(int, sys.argv[1:])
memory = np.frombuffer(mmap.mmap(descriptor, size), dtype=np.uint8)
os.close(descriptor)
print(*shared_place(memory[256:512]) or ["nowhere"], sep="\\n")
print(*shared_place(np.zeros(256, dtype=np.uint8)) or ["nowhere"], sep="\\n")
"""


def test_what_a_parent_has_open_is_found_without_a_copy():
    """As a raylet, which is the parent of the engine's process, has the object store open."""
    with tempfile.TemporaryFile(dir="/dev/shm") as store:
        store.write(bytes(range(256)) * 32)
        store.flush()
        command = [sys.executable, "-c", MAP_AND_FIND, str(store.fileno()), str(8192)]
        child = subprocess.run(command, pass_fds=[store.fileno()], stdout=subprocess.PIPE, text=True, check=True)
        path, offset, private = child.stdout.splitlines()
        assert os.stat(path).st_ino == os.fstat(store.fileno()).st_ino
        assert (int(offset), private) == (256, "nowhere")


def test_every_sample_of_a_prompt_has_its_own_seed():
    params = SimpleNamespace(seed=5, max_tokens=3)
    assert [for_sample(params, number).seed for number in range(3)] == [5, 6, 7]
    assert params.seed == 5
    assert for_sample(SimpleNamespace(seed=None), 1).seed is None
