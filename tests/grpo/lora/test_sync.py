import asyncio
import zlib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo.lora import adapter
from grpo.lora.sync import SyncError, check_sync, load_into_engine


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 7)), min_size=1, max_size=6))
def test_flat_form_round_trips(shapes):
    tensors = {f"t{i}": torch.randn(shape, dtype=torch.bfloat16) for i, shape in enumerate(shapes)}
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors.values()])
    back = adapter.unflatten(flat, adapter.layout(tensors, [tensor.shape for tensor in tensors.values()]))
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


@given(st.integers(1, 20), st.sampled_from([2, 8, 12, 64]), st.data())
def test_the_checksums_of_slices_add_up(rows, columns, data):
    generator = torch.Generator().manual_seed(rows * columns)
    matrix = torch.randn(rows, columns, dtype=torch.bfloat16, generator=generator)
    whole = compute_checksum(matrix)
    row = data.draw(st.integers(0, rows))
    assert compute_checksum(matrix[:row]) + compute_checksum(matrix[row:], row) == whole
    if columns % 8 == 0:  # heads have a multiple of 4 columns
        halves = matrix.split(columns // 2, dim=1)
        assert sum(compute_checksum(half.contiguous()) for half in halves) == whole


def compute_checksum(matrix: torch.Tensor, first_row: int = 0, number: int = 0) -> torch.Tensor:
    """The checksum of rows of the adapter's tensor `number`."""
    return adapter.checksum([adapter.row_sums(matrix)], ((number, first_row, len(matrix)),))


def compute_sums(matrices: list[torch.Tensor]) -> tuple[int, int]:
    """The split and the whole sum of an adapter that has these in q_proj."""
    names = [f"layers.{number // 2}.self_attn.q_proj.lora_{'AB'[number % 2]}" for number in range(len(matrices))]
    specs = adapter.layout(names, [matrix.shape for matrix in matrices])
    checksums = adapter.Checksums.of(torch.cat([matrix.reshape(-1) for matrix in matrices]), specs)
    assert checksums.tensors == len(matrices)
    return checksums.split, checksums.whole


def test_changed_and_swapped_values_are_found():
    torch.manual_seed(0)
    matrices = [torch.randn(8, 16, dtype=torch.bfloat16) for _ in range(4)]
    right = compute_sums(matrices)
    assert compute_sums([matrix.clone() for matrix in matrices]) == right
    for tensor, row, column in ((0, 0, 0), (1, 7, 15), (3, 2, 5)):
        changed = [matrix.clone() for matrix in matrices]
        changed[tensor][row, column] *= -1
        assert compute_sums(changed) != right
    flipped = [matrix.flip(0) if number == 1 else matrix for number, matrix in enumerate(matrices)]
    assert compute_sums(flipped) != right
    a, b, c, d = matrices
    assert compute_sums([c, b, a, d]) != right and compute_sums([a, d, c, b]) != right  # layers took each other's place


def test_unsharded_tensors_count_for_each_worker():
    a, b = torch.randn(2, 8, 16).to(torch.bfloat16)
    split, whole = compute_sums([a, b])
    assert (whole, split) == (int(compute_checksum(a)), int(compute_checksum(b, number=1)))
    workers = [
        compute_checksum(a) + compute_checksum(b[rows], rows.start, number=1) for rows in (slice(0, 4), slice(4, 8))
    ]
    assert adapter.Checksums(2, split, whole).checksum(2) == sum(map(int, workers)) % 2**64


EXPECTED = adapter.Checksums(tensors=32, split=-3, whole=10)  # 7 from one worker, 17 from two


def make_result(**changes):
    return {"rank": 0, "workers": 1, "checksum": 7, "tensors": 32} | changes


@pytest.mark.parametrize(
    "workers",
    [
        [], [make_result(workers=2)], [make_result(workers=2), make_result(workers=2)],
        *([make_result(checksum=8, workers=2), make_result(rank=1, workers=2, **{"checksum": 9} | wrong)]
          for wrong in ({"checksum": 8}, {"tensors": 31})),
    ],
)  # fmt: skip
def test_a_missing_or_wrong_result_stops_the_run(workers):
    right = [make_result(checksum=8, workers=2), make_result(rank=1, checksum=9, workers=2)]
    check_sync([right, [make_result()]], EXPECTED)
    with pytest.raises(SyncError, match="engine 1"):
        check_sync([[make_result()], workers], EXPECTED)


class Engine:
    """The two methods of vLLM's AsyncLLM that a sync calls; `cache_reset` is what its reset answers."""

    def __init__(self, cache_reset: bool) -> None:
        self.cache_reset = cache_reset

    async def collective_rpc(self, method, args):
        assert method == "load_adapter"
        path, specs = args
        assert specs == ["specs"]
        return [make_result(checksum=zlib.crc32(Path(path).read_bytes()[:100]))]

    async def reset_prefix_cache(self):
        return self.cache_reset


def test_the_engine_passes_bytes_on_and_drops_its_prefix_cache():
    engine = Engine(True)
    for start in (0, 7):  # the second sync writes to the same memory
        data = torch.arange(start, start + 100, dtype=torch.uint8).numpy()
        assert asyncio.run(load_into_engine(engine, data, ["specs"]))[0]["checksum"] == zlib.crc32(data)
    with pytest.raises(SyncError, match="prefix cache"):
        asyncio.run(load_into_engine(Engine(False), data, ["specs"]))
