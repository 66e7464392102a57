"""The harness with benchmarks that are known, and each real benchmark at a tiny size."""

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import scripts.bench
from grpo.model import mxfp4
from scripts.bench import __main__ as bench
from scripts.bench import harness, rollout
from scripts.bench.harness import Result, TimeDifference, Timing, time_in_turn
from scripts.bench.machine import Copy, facts

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
TINY = ("--experts", "1", "--repeat", "1", "--shrink", "45", "--copy-megabytes", "1")
FIELDS = {"name", "what", "unit", "higher_is_better", "stock", "ours", "ratio", "details", "extrapolation", "machine"}


def test_dequant_prints_one_json_object(capsys):
    assert bench.main(["dequant", "--json", *TINY]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == FIELDS and report["name"] == "dequant" and report["unit"] == "GB/s"
    assert report["stock"] > 0 and report["ratio"] == pytest.approx(report["ours"] / report["stock"])
    # One expert of 128 and 64 output features and of 2 groups of 32: a byte holds two values, a scale serves 32.
    values = (128 + 64) * 2 * 32
    assert report["details"]["written_mb"] == pytest.approx(2 * values / 1e6)
    assert report["details"]["read_mb"] == pytest.approx(values * (1 / 2 + 1 / 32) / 1e6)
    share = report["details"]["into_written_memory_read_and_written_gb_per_s"] / report["machine"]["copy_gb_per_s"]
    assert report["details"]["share_of_copy_bandwidth"] == pytest.approx(share, rel=0.1)  # printed with two digits


def test_dequant_extrapolates_to_the_size_of_the_model(capsys):
    assert bench.main(["dequant", "--json", *TINY]) == 0
    report = json.loads(capsys.readouterr().out)
    line, assumptions = report["extrapolation"]
    # 36 layers of 128 experts, gate_up_proj [2880, 5760] and down_proj [2880, 2880], two bytes a value.
    total = 36 * 128 * (2880 * 5760 + 2880 * 2880) * 2 / 1e9
    assert f"{total:.1f} GB" in line and f"{total / report['stock']:,.0f} s stock" in line
    assert "36 layers" in assumptions


def test_dequant_refuses_to_time_a_wrong_result(monkeypatch):
    right = mxfp4.dequantize
    monkeypatch.setattr(mxfp4, "dequantize", lambda *packed, **rest: right(*packed, **rest).neg_())
    with pytest.raises(RuntimeError, match="differ"):
        bench.main(["dequant", *TINY])


def test_dequant_prints_a_table_by_default(capsys):
    assert bench.main(["dequant", *TINY]) == 0
    out = capsys.readouterr().out
    for expected in ("stock", "ours", "ratio", "copy_gb_per_s", "gpt-oss-120b: 229.3 GB"):
        assert expected in out


def test_the_command_runs_and_lists_the_names():
    def run(*arguments):
        command = [sys.executable, "-m", "scripts.bench", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)

    listed = run("--help")
    assert listed.returncode == 0 and "dequant" in listed.stdout and "harness" not in listed.stdout
    unknown = run("no-such")
    assert unknown.returncode == 2 and "no-such" in unknown.stderr and "dequant" in unknown.stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], ""),
        (["dequant", "--device", "no-such"], "--device no-such"),
        (["dequant", "--copy-megabytes", "0"], "--copy-megabytes"),
        (["dequant", "--no-such"], "--no-such"),
    ],
)
def test_wrong_arguments_end_before_anything_is_measured(arguments, message, capsys):
    with pytest.raises(SystemExit) as end:
        bench.main(arguments)
    assert end.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("dequant", "--experts", "0"),
        ("rollout", "--samples", "0"),
        ("rollout", "--tokens", "9"),
        ("rollout", "--repeat", "1"),
    ],
)
def test_a_size_that_measures_nothing_is_refused(name, option, value, capsys):
    assert bench.main([name, option, value, "--copy-megabytes", "1"]) == 2
    assert option in capsys.readouterr().err


def rollouts(*lengths: int) -> list[dict]:
    """Samples as executors return them, of a prompt of 2 tokens."""
    logs = {"thinking_truncated": 0.0}
    return [
        {"observation_tokens": [1, 2, *range(length)], "action_ranges": [(2, 2 + length)], "extra_logs": logs}
        for length in lengths
    ]


def test_rollout_requires_equal_tokens_from_a_single_sample():
    rollout.check_alone(rollouts(3, 4), rollouts(3, 4))
    with pytest.raises(RuntimeError, match="sample 1 has other tokens"):
        rollout.check_alone(rollouts(3, 4), rollouts(3, 5))


def timings(**seconds: list[float]) -> dict[str, Timing]:
    """Rounds in which this process computes for a tenth of the time."""
    return {name: Timing(min(s), 0.1, tuple(s), tuple(x / 10 for x in s)) for name, s in seconds.items()}


@pytest.mark.parametrize(
    "more, missed",
    [(0.02, ""), (-0.1, ""), (0.05, "4.1% more at least, 3.0% at most")],
)
def test_rollout_says_when_a_budget_costs_too_much(more, missed):
    """This holds even if the machine's speed changes, since each round is compared with its neighbour."""
    parser = argparse.ArgumentParser()
    rollout.add_arguments(parser)
    stock = [0.9, 1.1, 1.0, 1.0]
    ours = [seconds + more + noise for seconds, noise in zip(stock, (0.01, -0.01, 0.005, -0.005), strict=True)]
    result = rollout.result(parser.parse_args([]), rollouts(3), rollouts(3), timings(stock=stock, ours=ours))
    assert missed in result.missed and bool(result.missed) is bool(missed)
    details = result.details
    assert details["overhead"] == pytest.approx(more) and details["processor_overhead"] == pytest.approx(more / 10)
    assert details["overhead_low"] < more < details["overhead_high"]
    assert details["tokens_per_s"] == pytest.approx(3 / result.ours)  # one sample of three tokens


def test_a_budget_that_costs_the_processor_too_much_is_noticed_where_the_clock_is_noisy():
    parser = argparse.ArgumentParser()
    rollout.add_arguments(parser)
    one = timings(stock=[1.0, 2.0, 1.0], ours=[2.0, 1.0, 1.0])
    one["ours"] = replace(one["ours"], processor=tuple(seconds + 0.1 for seconds in one["stock"].processor))
    assert "7.5% more at least" in rollout.result(parser.parse_args([]), rollouts(3), rollouts(3), one).missed


def test_a_difference_is_that_of_rounds_in_turn_with_its_standard_error():
    difference = TimeDifference.of([1.1, 2.3, 3.2], [1.0, 2.0, 3.0])
    assert (difference.mean, difference.error) == pytest.approx((0.2, 0.1 / 3**0.5))
    assert (difference.low, difference.high) == pytest.approx(
        (0.2 - 1.96 * difference.error, 0.2 + 1.96 * difference.error)
    )


BENCHMARK = '''"""A third of the time."""
from scripts.bench.harness import Result
def add_arguments(parser):
    parser.add_argument("--ours", type=float)
    parser.add_argument("--missed", default="")
def run(options, copy):
    return Result("seconds of nothing", "s", 3.0, options.ours, higher_is_better=False, missed=options.missed)
'''


@pytest.fixture
def added(tmp_path, monkeypatch):
    """A benchmark added as one module."""
    (tmp_path / "added.py").write_text(BENCHMARK)
    monkeypatch.setattr(scripts.bench, "__path__", [*scripts.bench.__path__, str(tmp_path)])
    yield "added"
    sys.modules.pop("scripts.bench.added", None)


def test_a_module_is_a_benchmark(added, capsys):
    assert bench.names() == sorted({*bench.names(), "added", "dequant"})
    assert bench.main([added, "--ours", "1.5", "--json", "--copy-megabytes", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == FIELDS and report["ratio"] == 2.0  # half the seconds are twice as good


def test_result_below_its_target_is_printed_with_exit_code_1(added, capsys):
    arguments = [added, "--ours", "4", "--missed", "3 s are wanted", "--json", "--copy-megabytes", "1"]
    assert bench.main(arguments) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["ours"] == 4 and captured.err == "bench added: 3 s are wanted\n"


@pytest.mark.parametrize("ours", ["0", "nan", "inf", "-1"])
def test_unmeasured_values_have_no_ratio(added, ours, capsys):
    assert bench.main([added, "--ours", ours, "--json", "--copy-megabytes", "1"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "nothing was measured" in captured.err


def test_ratio_is_how_many_times_ours_is_better():
    assert Result("", "GB/s", 2.0, 6.0, higher_is_better=True).ratio == 3
    assert Result("", "s", 2.0, 6.0, higher_is_better=False).ratio == pytest.approx(1 / 3)


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
    assert timings["a"] == Timing(2, 0.25, rounds=(4, 2), processor=(1, 0.5))
    assert timings["b"] == Timing(8, 0.25, rounds=(8, 16), processor=(2, 4))


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


JUDGE = ("--samples", "12", "--quota", "4", "--window", "1.5", "--latency", "0.02", "--deadline", "15")


def test_judge_wastes_less_than_stock_and_shows_the_bias_of_each_policy(capsys):
    assert bench.main(["judge", "--json", "--copy-megabytes", "1", *JUDGE]) == 0
    report = json.loads(capsys.readouterr().out)
    details = report["details"]
    assert set(report) == FIELDS and report["ours"] == pytest.approx(details["ours_calls"] / details["ours_judged"])
    assert details["ours_judged_share"] == 1 and details["ours_past_deadline"] == 0
    assert details["ours_wasted_share"] < details["stock_wasted_share"]
    assert details["calls_until_recovery"] == 1 and details["failed_calls_after_recovery"] == 0
    # A correct sample gains by the failure of its judge, unless the policy says otherwise.
    assert details["correctness_favours_right"] > 0.05 and details["correctness_favours_wrong"] < -0.05
    for policy in ("mean_quality", "group"):
        assert abs(details[f"{policy}_favours_right"]) < 0.02 and abs(details[f"{policy}_favours_wrong"]) < 0.02


@pytest.mark.parametrize("wrong", [("--samples", "7"), ("--quota", "0"), ("--window", "0")])
def test_judge_rejects_invalid_sizes(wrong, capsys):
    assert bench.main(["judge", "--copy-megabytes", "1", *wrong]) == 2
    assert "--" in capsys.readouterr().err
