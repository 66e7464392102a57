import subprocess
import sys

# In a separate process, since its changes are permanent.
PROGRAM = """
import gc, subprocess
from deepspeed.comm.torch import build_shm_op
from grpo.model import deepspeed_start
deepspeed_start.shorten()
from cpuinfo import get_cpu_info
assert get_cpu_info()["flags"] and gc.get_freeze_count() > 10_000
subprocess.Popen = None
get_cpu_info()
assert build_shm_op() is None
"""


def test_nothing_is_compiled_collected_or_asked_for_twice():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
