import os

import psutil
import pytest
import torch

from grpo.lora import side_path


def test_on_a_cpu_a_workers_memory_is_that_of_its_process():
    held = torch.zeros(2**26)
    assert side_path.held_memory(held.device) == pytest.approx(psutil.Process(os.getpid()).memory_info().rss, rel=0.1)
    assert side_path.held_memory(held.device) > held.nbytes


def test_on_a_gpu_it_is_the_peak_since_the_last_sync(monkeypatch):
    peak = {1: 7}  # stands in for the allocator of GPU 1
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak[device.index])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: peak.update({device.index: 3}))
    device = torch.device("cuda", 1)
    assert [side_path.held_memory(device), side_path.held_memory(device)] == [7, 3]
