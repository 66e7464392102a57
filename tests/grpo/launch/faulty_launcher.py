"""The real launcher and run directory around a stand-in for the trainer, which suffers planned faults.

Run as a program, it is `python -m grpo.launch` for a model of zeros on a machine with enough of everything.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

from grpo.launch import __main__ as launch
from grpo.launch import attempt, hangs_and_onsets, preflight, rendering
from grpo.launch.supervise import joined_cluster, processes
from grpo.launch.supervise.supervisor import supervise
from grpo.stack import machine

TRAINER = Path(__file__).with_name("faulty_trainer.py")
CLEAN = {"state": "applied", "applied": 3, "total": 3, "digest": "d", "expected_digest": "d", "message": "", "next": ""}

preflight.patch_status = lambda: CLEAN
rendering.render = lambda model, prompts, variables: [rendering.Rendered(8, str(prompt)) for prompt in prompts]
machine.memory_available = lambda: 900 * 10**9
machine.shared_memory_free = lambda: 64 * 10**9
attempt.supervise = lambda job: supervise(replace(job, ray=None, grace=2.0))
attempt.DRIVER = (sys.executable, str(TRAINER))
attempt.LAUNCHER = (str(Path(__file__)),)
attempt.FIRST_WAIT = 0.5
hangs_and_onsets.FIRST_TIMES = 40.0
joined_cluster.LOOK_AGAIN_SECONDS = 0.2
joined_cluster.ROOM_SECONDS = float(os.environ.get("FAULTY_ROOM", "600"))

if __name__ == "__main__":
    sys.exit(processes.guard(launch.main))
