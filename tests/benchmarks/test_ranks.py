"""The benchmarks that run processes, at tiny sizes: what they measure is what they say."""

import json
import mmap
import shutil
import struct

import pytest
import torch

from benchmarks import __main__ as bench
from benchmarks import export, offload, resume
from benchmarks.parts import memory, random_model, ranks
from grpo.model import model_files
from grpo.model.architecture import Architecture
from scripts.dequantize_checkpoint import dequantize_checkpoint
from tests import forked


@pytest.fixture
def forked_ranks(monkeypatch):
    monkeypatch.setattr(ranks, "start_process", forked.Program)


def run_benchmark(capsys, name: str, *arguments: object) -> dict:
    assert bench.main([name, "--json", "--copy-megabytes", "1", *map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.timeout(300)
def test_load(capsys, forked_ranks):
    report = run_benchmark(capsys, "load", "--layers", 1, "--experts", 4)
    details = report["details"]
    assert details["ours_read_over_files"] == pytest.approx(1, abs=0.02)
    assert report["ours"] < report["stock"]
    assert details["conversion_peak_over_bf16_model"] > 1
    assert details["stock_peak_over_bf16_model"] > 2  # the mapped copy, and the partitions
    assert "of which 234 GB are files" in report["extrapolation"][0]


@pytest.mark.timeout(300)
def test_save(capsys, forked_ranks):
    report = run_benchmark(capsys, "save", "--layers", 2)
    details = report["details"]
    assert 1 <= details["adapter_files_over_adapter"] < 1.02
    assert details["ours_peak_over_adapter"] < 4  # of 5 MB here, for which the allocator's own pages matter
    assert details["trainer_bytes_a_parameter"] == pytest.approx(12, rel=0.02)
    assert report["ours"] < report["stock"]


@pytest.mark.timeout(600)
def test_resume(capsys, forked_ranks):
    details = run_benchmark(capsys, "resume", "--layers", 1, "--ranks", 1)["details"]
    assert details["ours_read_bytes_a_parameter"] == pytest.approx(12, rel=0.1)
    assert details["stock_weights_read_times"] > 0.99
    assert details["ours_peak_mb"] < details["stock_peak_mb"]


def test_resume_rejects_a_trainer_in_a_different_state():
    saved = [{"master": "a", "global_steps": 1}]
    back, other = {"master": "a", "global_steps": 1}, {"master": "b", "global_steps": 1}
    fresh = {"master": "c", "global_steps": 0}
    resume.check(saved, [{"state": back, "fresh": fresh}], "ours")
    with pytest.raises(RuntimeError, match="ours brought back another master on rank 0"):
        resume.check(saved, [{"state": other, "fresh": fresh}], "ours")
    with pytest.raises(RuntimeError, match="nothing is shown"):
        resume.check(saved, [{"state": back, "fresh": {**fresh, "master": "a"}}], "ours")


@pytest.mark.timeout(300)
def test_export(capsys, forked_ranks):
    report = run_benchmark(capsys, "export", "--layers", 1, "--experts", 4)
    assert report["details"]["stock_peak_over_bf16_model"] > 1
    assert report["details"]["merged_weights_that_differ"] < 0.05  # each by its last bit at most, which was checked
    assert report["ours"] < report["stock"]


def test_export_detects_different_weights(tmp_path):
    """One merged weight eight units in the last place off, and one bit of another tensor."""
    random_model.write_random_model(tmp_path / "base", layers=1, experts=1, intermediate=32)
    dequantize_checkpoint(tmp_path / "base", tmp_path / "bf16")
    base, merged = model_files.read(tmp_path / "base"), {"model.layers.0.self_attn.q_proj.weight"}
    whole = model_files.read(tmp_path / "bf16")
    assert export.compare(base, whole, whole, merged) == 0
    for name in (*merged, "model.layers.0.mlp.experts.down_proj"):
        shutil.copytree(tmp_path / "bf16", tmp_path / name)
        tensor = whole.tensors[name]
        with (tmp_path / name / tensor.file.name).open("r+b") as file:
            file.seek(tensor.start)
            (bits,) = struct.unpack("<H", file.read(2))
            file.seek(tensor.start)
            file.write(struct.pack("<H", bits ^ (8 if name in merged else 1)))
        with pytest.raises(RuntimeError, match=f"other values for {name}"):
            export.compare(base, whole, model_files.read(tmp_path / name), merged)


@pytest.mark.timeout(600)
def test_offload(capsys, forked_ranks):
    sizes = ("--layers", 1, "--experts", 4, "--intermediate", 320, "--lora-rank", 4, "--ranks", 1)
    report = run_benchmark(capsys, "offload", *sizes)
    details = report["details"]
    for name in ("stock", "ours"):
        moments = [details[f"{name}_{moment}_gb"] for moment in ("begin", "ready", "peak")]
        assert moments == sorted(moments)
    assert report["ours"] < report["stock"]
    assert details["predicted_gb"] > 0 and "4 ranks" in report["extrapolation"][0]


def test_offload_predicts_only_the_memory_of_the_ranks(tmp_path):
    random_model.write_random_model(tmp_path / "model", layers=1, experts=2, intermediate=32)
    one, two = (offload.plan_bytes(tmp_path / "model", ranks, 8) for ranks in (1, 2))
    assert two.pop("2 processes") == 2 * one.pop("1 processes")
    model = model_files.read_whole(tmp_path / "model")
    held = sum(Architecture.from_config(model.config).actor_bytes(packed=True).values())
    assert held in one.values() and sum(one.values()) < 1.1 * held
    assert one == two


@pytest.mark.timeout(300)
def test_step(capsys, forked_ranks):
    sizes = ("--layers", 1, "--experts", 2, "--intermediate", 64, "--vocabulary", 512, "--tokens", 32, 64)
    details = run_benchmark(capsys, "step", *sizes, "--repeat", 1)["details"]
    assert details["gradient_difference"] < 0.02 and details["loss_difference"] < 0.02
    assert details["fp32_logits_gb"] == pytest.approx(4 * 64 * 512 / 1e9)
    for way in ("stock", "bf16", "ours"):
        short, long = (1e3 * details[f"{way}_{tokens}_tokens_peak_gb"] for tokens in (32, 64))
        assert details[f"{way}_mb_per_token"] == pytest.approx((long - short) / 32)
        assert details[f"{way}_64_tokens_s"] > 0


def test_a_rank_that_fails_ends_the_benchmark(forked_ranks):
    with pytest.raises(ValueError, match=r"load_worker ended with 1: (.|\n)*nowhere"):
        ranks.run_ranks("load_worker", 1, {"model": "/nowhere", "package": None, "settings": {}})


def test_the_pages_of_mapped_files_are_counted_when_they_are_read(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 40_000_000)
    with (tmp_path / "file").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        before = memory.count_mapped_bytes(tmp_path)
        assert sum(mapped[: 20_000_000 : mmap.PAGESIZE]) > 0
        assert 20_000_000 <= memory.count_mapped_bytes(tmp_path) - before < 25_000_000  # the kernel maps neighbors, too
    assert memory.count_mapped_bytes(tmp_path) == 0


def test_the_peak_of_memory_is_noticed():
    peak = memory.Peak()
    with mmap.mmap(-1, 50_000_000) as block:  # not from the heap, which may hold freed memory
        block[:: mmap.PAGESIZE] = b"x" * len(block[:: mmap.PAGESIZE])
    assert peak.growth() == pytest.approx(50_000_000, rel=0.1)


def test_the_peak_of_tensors_is_exact_and_leaves_out_what_was_freed_before_it():
    kept = torch.zeros(1000)

    def run():
        first = torch.zeros(10_000_000)
        second = first[:5_000_000] + kept[0]
        del first
        return torch.zeros(1_000_000) + second[0]

    assert memory.measure_peak(run, torch.device("cpu")) == 60_000_000
