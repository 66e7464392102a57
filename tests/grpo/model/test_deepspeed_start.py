import subprocess
import sys

# In a separate process, since its changes are permanent.
PROGRAM = """
import gc
import openrlhf
assert gc.get_threshold()[0] == 100_000
from deepspeed.comm.torch import build_shm_op
from grpo.model import deepspeed_start

deepspeed_start.shorten()
assert gc.get_freeze_count() > 10_000 and gc.get_threshold()[0] == 700
assert build_shm_op() is None
"""


def test_nothing_is_compiled_and_imports_are_not_collected():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
