"""The GPU's kernels on a CPU: Triton's interpreter runs the tests of tests/gpu that it can."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(600)
def test_kernels_in_the_interpreter():
    # In a separate process: Triton reads the variable on import.
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "tests/gpu/test_kernels.py"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    checkout = Path(__file__).parents[3]
    ended = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stdout
    assert "skipped" not in ended.stdout, ended.stdout
