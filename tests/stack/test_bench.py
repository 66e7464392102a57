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
    result = run_benchmark("sync", "--repeat", 1, "--engines", 1, "--tensor-parallel", 1, "--layers", 4)
    # 32 of the 288 tensors of gpt-oss-120b, in their sizes
    assert "32 adapter tensors (10.6 MB) into 1 vLLM engines x 1 workers" in result["what"]
    details = result["details"]
    assert (details["stock_calls_of_an_engine"], details["our_calls_of_an_engine"]) == (32, 1)
