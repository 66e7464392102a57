"""The Triton kernels of a run compile without a GPU, and those of the actor do not spill.

`scripts/test.sh` compiles them with the Triton of the stack for CPUs, `scripts/test.sh --gpu-stack` with that of the
stack for GPUs, whose vLLM alone has kernels for MXFP4 experts.
"""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from benchmarks.compiled import SHARED_MEMORY
from grpo.stack.checkout import CHECKOUT

pytestmark = pytest.mark.timeout(1800)
MARLIN = """
from benchmarks import compiled_launches, engine_speed

compiled_launches.simulate_card()
from vllm.model_executor.layers.quantization import mxfp4

if arguments := engine_speed.choose_marlin():  # vLLM 0.29
    from vllm.model_executor.layers.fused_moe.oracle.mxfp4 import map_mxfp4_backend
    print(map_mxfp4_backend(arguments["moe_backend"])[0].name)
else:
    mxfp4.has_triton_kernels = lambda: True
    print(mxfp4.get_mxfp4_backend(False).name)
"""


def test_vllm_takes_marlins_kernels_if_it_is_asked_to() -> None:
    done = subprocess.run([sys.executable, "-c", MARLIN], cwd=CHECKOUT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "MARLIN", done.stderr[-2000:]


def test_every_kernel_compiles_and_the_actors_do_not_spill() -> None:
    command = [sys.executable, "-m", "benchmarks.compiled"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    report = json.loads(done.stdout)
    ours = [kernel for kernel in report["kernels"] if kernel["part"].startswith("actor:")]
    assert {one["name"] for one in ours} == {"_forward", "_deltas", "_backward_keys", "_backward_queries", "_unpack"}
    for one in ours:  # two blocks of 128 threads fit on a multiprocessor; it has 65,536 registers
        assert one["registers"] * 2 * 128 <= 65_536 and one["shared"] * 2 <= SHARED_MEMORY, one
    has_mxfp4 = find_spec("vllm.third_party.triton_kernels") is not None
    assert bool(report["skipped"]) != has_mxfp4
    owners = {one["part"].partition(":")[0] for one in report["kernels"] if "_matmul_ogs" in one["name"]}
    assert owners == ({"engine", "engine with --actor_shard engine"} if has_mxfp4 else set())
