"""The benchmarks that start an engine, small."""

import json
import subprocess
import sys

import pytest

from .runs import ROOT


def result_of(*arguments: object) -> dict:
    command = [sys.executable, "-m", "scripts.bench", arguments[0], "--json", *map(str, arguments[1:])]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert finished.returncode == 0, finished.stderr[-5000:]
    return json.loads(finished.stdout)


@pytest.mark.timeout(600)
def test_one_buffer_takes_one_call_instead_of_one_per_tensor():
    result = result_of("sync", "--repeat", 1, "--engines", 1, "--tensor-parallel", 1, "--layers", 4)
    # 32 of the 288 tensors of gpt-oss-120b, in their sizes
    assert "32 adapter tensors (10.6 MB) into 1 vLLM engines x 1 workers" in result["what"]
    details = result["details"]
    assert (details["stock_calls_of_an_engine"], details["our_calls_of_an_engine"]) == (32, 1)


@pytest.mark.timeout(300)
def test_the_metrics_cost_what_their_parts_cost():
    """Its 1% needs a model of more than a few rows, and a machine that does nothing else."""
    sizes = ("--layers", 1, "--experts", 1, "--intermediate", 64, "--vocabulary", 512, "--tokens", 32, "--repeat", 1)
    result = result_of("metrics", *sizes, "--samples", 8, "--length", 64, "--rounds", 2, "--most", 1000)
    details = result["details"]
    assert details["trainer_seconds"] > 0 and details["controller_seconds"] > 0
    log_probs = 24e-6 * details["log_probs_microseconds_a_token"]  # of three quarters of 32 tokens
    costs = details["trainer_seconds"] + details["controller_seconds"] + log_probs
    assert result["ours"] - result["stock"] == pytest.approx(costs, rel=0.05)
    assert details["share_of_the_step"] == pytest.approx(costs / result["stock"], rel=0.05)


@pytest.mark.timeout(300)
def test_near_ties_the_recorded_routing_brings_log_probs_together(tiny_model):
    result = result_of("routing", "--model", tiny_model / "bf16", "--seeds", 3)
    assert result["details"]["choices_that_differ"] > 0, "no router is near a tie: the comparison would prove nothing"
    assert result["ours"] < result["stock"]
