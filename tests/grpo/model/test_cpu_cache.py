from pathlib import Path

import torch

from grpo.model.cpu_cache import give_back_zeros


def count_resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_zeros_take_no_memory_until_they_are_used():
    cache = torch.zeros(2, 2**26, dtype=torch.int8)
    before = count_resident()
    give_back_zeros(cache.view(torch.bfloat16)[1])  # any view of it
    assert before - count_resident() > 1.9 * 2**26
    assert not cache.any()
    cache[0, :5] = 7
    assert cache.sum() == 35
