"""The benchmarks that run processes, at tiny sizes: what they measure is what they say."""

import json

import pytest

from scripts.bench import __main__ as bench
from scripts.bench.parts import memory, random_model, ranks


def report_of(capsys, name: str, *arguments: object) -> dict:
    assert bench.main([name, "--json", "--copy-megabytes", "1", *map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.timeout(300)
def test_load(capsys):
    report = report_of(capsys, "load", "--layers", 1, "--experts", 4)
    details = report["details"]
    assert details["ours_read_over_files"] == pytest.approx(1, abs=0.02)
    assert report["ours"] < report["stock"]
    assert "4 ranks: at least 935 GB stock" in report["extrapolation"][0]


@pytest.mark.timeout(300)
def test_save(capsys):
    report = report_of(capsys, "save", "--layers", 2)
    details = report["details"]
    assert 1 <= details["adapter_files_over_adapter"] < 1.02
    assert details["ours_peak_over_adapter"] < 4  # of 5 MB here, beside which the allocator's own pages weigh
    assert details["trainer_bytes_a_parameter"] == pytest.approx(12, rel=0.02)
    assert report["ours"] < report["stock"]


@pytest.mark.timeout(300)
def test_step(capsys):
    sizes = ("--layers", 1, "--experts", 2, "--intermediate", 64, "--vocabulary", 512, "--tokens", 32, "--repeat", 1)
    details = report_of(capsys, "step", *sizes)["details"]
    assert details["gradient_difference"] < 0.02 and details["loss_difference"] < 0.02
    assert details["fp32_logits_gb"] == pytest.approx(4 * 32 * 512 / 1e9)


def test_the_sizes_are_those_of_the_120b():
    assert round(random_model.BF16_BYTES / 1e9, 1) == 233.7
    assert random_model.FULL.projection("q_proj") == (4096, 2880)


def test_a_rank_that_fails_ends_the_benchmark(capsys):
    with pytest.raises(ValueError, match=r"load_worker ended with 1: (.|\n)*nowhere"):
        ranks.run_ranks("load_worker", 1, {"model": "/nowhere", "ours": True})


def test_the_peak_of_memory_is_noticed():
    peak = memory.Peak()
    block = bytearray(50_000_000)
    block[::4096] = b"x" * len(block[::4096])
    del block
    assert peak.growth() == pytest.approx(50_000_000, rel=0.1)
