"""The harness with benchmarks that are known, and each real benchmark at a tiny size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import benchmarks
from benchmarks import __main__ as bench
from benchmarks import harness
from benchmarks.harness import Timing, time_in_turn
from benchmarks.machine import Copy, facts
from grpo.model import mxfp4

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
TINY = ("--experts", "1", "--repeat", "1", "--shrink", "45", "--copy-megabytes", "1")
FIELDS = {"name", "what", "unit", "higher_is_better", "stock", "ours", "ratio", "details", "extrapolation", "machine"}


def test_dequant_prints_one_json_object_or_a_table(capsys):
    assert bench.main(["dequant", "--json", *TINY]) == 0
    report = json.loads(capsys.readouterr().out)
    details, machine = report["details"], report["machine"]
    assert set(report) == FIELDS and report["name"] == "dequant" and report["unit"] == "GB/s"
    assert report["stock"] > 0 and report["ratio"] == pytest.approx(report["ours"] / report["stock"])
    # One expert of 128 and 64 output features and of 2 groups of 32: a byte holds two values, a scale serves 32.
    values = (128 + 64) * 2 * 32
    assert details["written_mb"] == pytest.approx(2 * values / 1e6)
    assert details["read_mb"] == pytest.approx(values * (1 / 2 + 1 / 32) / 1e6)
    share = details["into_written_memory_read_and_written_gb_per_s"] / machine["copy_gb_per_s"]
    assert details["share_of_copy_bandwidth"] == pytest.approx(share, rel=0.1)  # printed with two digits
    # 36 layers of 128 experts, gate_up_proj [2880, 5760] and down_proj [2880, 2880], two bytes a value.
    total = 36 * 128 * (2880 * 5760 + 2880 * 2880) * 2 / 1e9
    line, assumptions = report["extrapolation"]
    assert f"{total:.1f} GB" in line and f"{total / report['stock']:,.0f} s stock" in line
    assert "36 layers" in assumptions
    table = bench.as_text(report)
    assert all(word in table for word in ("stock", "ours", "ratio", "copy_gb_per_s", "gpt-oss-120b: 229.3 GB"))


def test_dequant_refuses_to_time_a_wrong_result(monkeypatch):
    right = mxfp4.dequantize
    monkeypatch.setattr(mxfp4, "dequantize", lambda *packed, **rest: right(*packed, **rest).neg_())
    with pytest.raises(RuntimeError, match="differ"):
        bench.main(["dequant", *TINY])


def test_the_command_runs_and_lists_the_names(capsys):
    command = [sys.executable, "-m", "benchmarks", "no-such"]
    unknown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert unknown.returncode == 2 and "no-such" in unknown.stderr and "dequant" in unknown.stderr
    with pytest.raises(SystemExit) as end:
        bench.main(["--help"])
    assert end.value.code == 0
    listed = capsys.readouterr().out
    assert "dequant" in listed and "harness" not in listed


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], ""),
        (["dequant", "--device", "no-such"], "--device no-such"),
        (["dequant", "--copy-megabytes", "0"], "--copy-megabytes"),
        (["resume", "--ranks", "0"], "--ranks: 0 is not"),
        (["export", "--intermediate", "33"], "33 is not a multiple of 32"),
        (["offload", "--tokens", "few"], "--tokens: few is not"),
        (["dequant", "--no-such"], "--no-such"),
    ],
)
def test_wrong_arguments_end_before_anything_is_measured(arguments, message, capsys):
    with pytest.raises(SystemExit) as end:
        bench.main(arguments)
    assert end.value.code == 2 and message in capsys.readouterr().err


@pytest.fixture
def add_benchmark(tmp_path, monkeypatch):
    """Return what adds a benchmark as one module."""

    def add(ours: str) -> str:
        text = f'Result("seconds of nothing", "s", 3.0, float("{ours}"))'
        text = f"from benchmarks.harness import Result\nSIZES = {{}}\ndef run(options, copy):\n    return {text}\n"
        (tmp_path / "added.py").write_text(text)
        return "added"

    monkeypatch.setattr(benchmarks, "__path__", [*benchmarks.__path__, str(tmp_path)])
    yield add
    sys.modules.pop("benchmarks.added", None)


def test_a_module_is_a_benchmark(add_benchmark, capsys):
    assert bench.main([add_benchmark("1.5"), "--json", "--copy-megabytes", "1"]) == 0
    assert bench.names() == sorted({*bench.names(), "added", "dequant"})
    report = json.loads(capsys.readouterr().out)
    assert set(report) == FIELDS and report["ratio"] == 2.0  # half the seconds are twice as good


@pytest.mark.parametrize("ours", ["0", "nan", "inf", "-1"])
def test_unmeasured_values_have_no_ratio(add_benchmark, ours, capsys):
    assert bench.main([add_benchmark(ours), "--json", "--copy-megabytes", "1"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "nothing was measured" in captured.err


def test_variants_are_timed_in_turn_without_the_first_round(monkeypatch):
    calls, clock = [], {"wall": 100.0, "processor": 10.0}
    monkeypatch.setattr(harness.time, "perf_counter", lambda: clock["wall"])
    monkeypatch.setattr(harness.time, "process_time", lambda: clock["processor"])

    def work(name, *seconds):
        calls.append(name)
        took = seconds[calls.count(name) - 1]
        clock["wall"] += took
        clock["processor"] += took / 4

    timings = time_in_turn({"a": lambda: work("a", 64, 4, 2), "b": lambda: work("b", 32, 8, 16)}, repeat=2)
    assert calls == ["a", "b"] * 3
    assert timings["a"] == Timing(2, 0.25)
    assert timings["b"] == Timing(8, 0.25)


def test_copy_keeps_its_best_and_the_number_of_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    try:
        copy = Copy(1, CPU)
        first = copy.measure(1)
        assert torch.get_num_threads() == 8
    finally:
        torch.set_num_threads(before)
    assert 0 < first <= copy.measure(1) == copy.best
    assert facts(copy)["copy_gb_per_s"] == round(copy.best, 2)
