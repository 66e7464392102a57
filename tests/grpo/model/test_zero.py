import subprocess
import sys
from argparse import Namespace

import pytest

from grpo.model import zero


def make_config() -> dict:
    return {"zero_optimization": {"offload_param": {"device": "none"}}}


def make_arguments(**changes) -> Namespace:
    values = {"offload": False, "actor_shard": "zero3", "stage3_param_persistence_threshold": None}
    return Namespace(**values | changes)


@pytest.mark.timeout(500)
def test_many_gathers_are_exact(run_ranks):
    # Without stage3_allgather_sequential some of these gathers are wrong on gloo: they return too early.
    run_ranks(2, "gathers", "60")


@pytest.mark.timeout(500)
def test_a_gather_takes_twice_a_part_of_the_adapter(run_ranks):
    run_ranks(2, "gather_memory")


@pytest.mark.parametrize(("backend", "is_gpu"), [("nccl", True), ("gloo", False)])
def test_offloaded_parameters_are_pinned_with_a_gpu(monkeypatch, backend, is_gpu):
    # Stands in for a GPU's accelerator; the code calls only this method.
    accelerator = Namespace(communication_backend_name=lambda: backend)
    monkeypatch.setattr(zero, "get_accelerator", lambda: accelerator)
    tuned = zero.tune(make_config(), make_arguments(offload=True))["zero_optimization"]
    assert tuned["offload_param"] == {"device": "cpu", "pin_memory": is_gpu}
    assert tuned["stage3_allgather_sequential"]
    assert zero.tune(make_config(), make_arguments())["zero_optimization"]["offload_param"] == {"device": "none"}


@pytest.mark.parametrize(("shard", "expected"), [("zero3", 0), ("none", zero.WHOLE)])
def test_threshold_is_passed_on_unless_each_rank_keeps_the_adapter_whole(shard, expected):
    args = make_arguments(actor_shard=shard, stage3_param_persistence_threshold=0)
    assert zero.tune(make_config(), args)["zero_optimization"]["stage3_param_persistence_threshold"] == expected


# In a separate process, since its changes are permanent.
PROGRAM = """
import gc
import openrlhf
assert gc.get_threshold()[0] == 100_000
from deepspeed.comm.torch import build_shm_op
from grpo.model import zero

zero.shorten_start()
assert gc.get_freeze_count() > 10_000 and gc.get_threshold()[0] == 700
assert build_shm_op() is None
"""


def test_nothing_is_compiled_and_imports_are_not_collected():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
