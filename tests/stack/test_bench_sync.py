"""The benchmark of the sync runs on one small engine."""

import json
import subprocess
import sys

import pytest

from .runs import ROOT


@pytest.mark.timeout(600)
def test_one_buffer_is_faster_than_tensor_by_tensor():
    command = [sys.executable, "-m", "scripts.bench", "sync", "--json", "--repeat", "2"]
    small = ["--engines", "1", "--tensor-parallel", "1", "--layers", "4"]
    finished = subprocess.run([*command, *small], capture_output=True, text=True, cwd=ROOT)
    assert finished.returncode == 0, finished.stderr[-5000:]
    result = json.loads(finished.stdout)
    # 32 of the 288 tensors of gpt-oss-120b, in their sizes
    assert "32 adapter tensors (10.6 MB) into 1 vLLM engines x 1 workers" in result["what"]
    assert result["ratio"] > 2
