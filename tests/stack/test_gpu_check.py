"""The checks of engines, and `sync`, on a CPU at tiny sizes: real Ray, real engines, and the actor's model.

Otherwise the checks would run for the first time on a GPU that somebody pays for.
"""

import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks import engine_speed, parity
from benchmarks.random_model import shrink
from grpo.stack.checkout import CHECKOUT
from tests import forked

pytestmark = pytest.mark.timeout(900)
TINY = shrink(
    768, layers=2, hidden=128, heads=4, key_value_heads=2, head_dim=32, experts=32, intermediate=128, mxfp4=False
)
SHORT = engine_speed.Lengths(prompt=24, short=8, long=24)


def test_engine_and_actor_agree_with_replay_at_a_width_of_their_own():
    numbers = parity.measure_width(0, replace(TINY, mxfp4=True), expert_rank=4).numbers
    assert numbers["difference_nat"] < 0.05 < numbers["without_adapter_nat"]
    # On a CPU both round nearly alike; on a GPU choices differ.
    assert numbers["difference_nat"] <= numbers["without_replay_nat"] + 1e-3
    assert 0 <= numbers["choices_differing"] < 0.6


def test_the_passes_of_an_engine_are_timed():
    numbers = engine_speed.measure_ways("tiny", TINY, ["eager"], (1, 4), SHORT).numbers
    times = numbers["decode_s"]["eager"]
    assert list(times) == ["1", "4"] and all(map(math.isfinite, times.values()))
    assert numbers["cache_tokens"]["eager"] >= 2 * 4 * (SHORT.prompt + SHORT.long) and numbers["model"] == "tiny"


SHARE = """
import json
from dataclasses import replace
from benchmarks.actor import share_model
from tests.stack.test_gpu_check import SHORT, TINY

if __name__ == "__main__":  # the engine's core imports this file
    passed = share_model(0, "tiny", replace(TINY, mxfp4=True), (64, 96), (1, 4), replace(SHORT, prompt=128))
    print(json.dumps(passed.numbers))
"""


def test_engine_and_actor_share_a_model(tmp_path):
    """In a process of its own: DeepSpeed leaves a group of ranks in it."""
    program = tmp_path / "share.py"
    program.write_text(SHARE)
    done = forked.run([sys.executable, str(program)], 600)
    assert done.returncode == 0, done.stderr[-5000:]
    numbers = json.loads(done.stdout.splitlines()[-1])
    assert numbers["difference_nat"] < 0.05 < numbers["without_adapter_nat"]
    assert list(numbers["decode_s"]) == ["1", "4"] and numbers["tokens"] == [64, 96]
    assert all(map(math.isfinite, [*numbers["decode_s"].values(), *numbers["old_s"], *numbers["train_s"]]))


def test_one_buffer_takes_one_call_instead_of_one_per_tensor():
    sizes = {"engines": 1, "tensor-parallel": 1, "layers": 4, "repeat": 1}
    words = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    command = [sys.executable, "-m", "benchmarks", "sync", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT)
    assert done.returncode == 0, done.stderr[-5000:]
    details = json.loads(done.stdout)["details"]
    assert (details["stock_calls_of_an_engine"], details["our_calls_of_an_engine"]) == (32, 1)
