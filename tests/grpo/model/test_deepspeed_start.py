import subprocess
import sys

# In a separate process, since its changes are permanent.
PROGRAM = """
import gc, subprocess
import torch
from deepspeed.comm.torch import build_shm_op
from deepspeed.ops.adam import DeepSpeedCPUAdam
from grpo.model import deepspeed_start

asked = []

class Popen(subprocess.Popen):
    def __init__(self, command, *args, **kwargs):
        asked.append(command)
        super().__init__(command, *args, **kwargs)

subprocess.Popen = Popen
deepspeed_start.shorten()
assert gc.get_freeze_count() > 10_000
DeepSpeedCPUAdam([torch.nn.Parameter(torch.zeros(4))])
features = [command for command in asked if any("cpuinfo" in word for word in command)]
assert len(features) == 1, asked
assert build_shm_op() is None
"""


def test_nothing_is_compiled_collected_or_asked_for_twice():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
