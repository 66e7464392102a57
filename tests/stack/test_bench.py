"""The benchmarks that start an engine, small."""

import json
import subprocess
import sys

import pytest

from .runs import ROOT


def run_benchmark(*arguments: object) -> dict:
    command = [sys.executable, "-m", "benchmarks", arguments[0], "--json", *map(str, arguments[1:])]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert finished.returncode == 0, finished.stderr[-5000:]
    return json.loads(finished.stdout)


@pytest.mark.timeout(600)
def test_one_buffer_takes_one_call_instead_of_one_per_tensor():
    sizes = {"engines": 1, "tensor-parallel": 1, "layers": 4, "expert-rank": 8, "repeat": 1}
    result = run_benchmark("sync", *(word for name, size in sizes.items() for word in (f"--{name}", size)))
    # 32 of the 288 tensors of gpt-oss-120b, in their sizes, and 16 of few and small experts
    assert "48 adapter tensors (11.4 MB) into 1 vLLM engines x 1 workers" in result["what"]
    details = result["details"]
    assert (details["stock_calls_of_an_engine"], details["our_calls_of_an_engine"]) == (48, 1)


@pytest.mark.timeout(600)
def test_engines_decode_with_an_adapter_of_the_experts_and_without():
    """Seconds of so small a pass say nothing: that both engines start and print nothing between the result does."""
    result = run_benchmark("experts", "--experts", 4, "--hidden", 64, "--tokens", 32, "--sequences", 2, "--repeat", 1)
    measured = {"seconds_of_a_pass_attention", "seconds_of_a_pass_experts", "pass_experts_over_attention"}
    assert measured <= result["details"].keys()
