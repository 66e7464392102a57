import subprocess
import sys


def test_many_gathers_are_exact(run_ranks):
    # Without stage3_allgather_sequential some of these gathers are wrong on gloo: they return too early.
    run_ranks(2, "gathers", "60")


def test_a_gather_takes_twice_a_part_of_the_adapter(run_ranks):
    run_ranks(2, "gather_memory")


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
