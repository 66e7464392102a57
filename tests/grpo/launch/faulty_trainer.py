"""A stand-in for the trainer with an engine. At each start it takes a line of faults.jsonl, and suffers that fault.

It logs the same numbers for a step whenever it makes it, and copies checkpoints that a test has prepared. A fault names
its ``step`` and ``phase``, and what happens then: ``raise`` a message with an exception of a ``kind``, or ``send`` a
signal to the ``target`` and ``cut`` the last line of the metrics before. Or it lingers ``at`` a step until
the test ends it; it saves if asked meanwhile, unless it ``is_deaf`` or the saving ``fails``.
"""

import builtins
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from grpo.checkpoint.on_request import SaveRequest
from grpo.launch.supervise import driver_error
from grpo.run.progress import PolicyMismatch
from grpo.run.run_files import RunFiles
from grpo.run.run_log import RunLog

ENGINE = "import setproctitle, time; setproctitle.setproctitle('ray::LLMRayActor.generate'); time.sleep(300)"


def read_flag(name: str) -> str | None:
    return sys.argv[sys.argv.index(f"--{name}") + 1] if f"--{name}" in sys.argv else None


def take_fault(folder: Path) -> dict:
    file = folder / "faults.jsonl"
    first, *rest = [*file.read_text().splitlines(), "{}"]
    file.write_text("".join(f"{line}\n" for line in rest if line != "{}"))
    return json.loads(first)


def suffer(fault: dict, step: int, phase: str, engine: subprocess.Popen) -> None:
    if (fault.get("step"), fault.get("phase")) != (step, phase):
        return
    if "cut" in fault:
        file = RunFiles(Path(os.environ["GRPO_RUN_DIR"])).metrics
        file.write_bytes(file.read_bytes()[:-20])
    if "raise" in fault:
        if fault.get("kind") == PolicyMismatch.__name__:
            raise PolicyMismatch(fault["raise"], "look at it")
        raise getattr(builtins, fault.get("kind", "RuntimeError"))(fault["raise"])
    pid = engine.pid if fault["target"] == "engine" else os.getpid()
    os.kill(pid, signal.Signals[fault["send"]])


def main() -> None:
    driver_error.install()
    folder, run_dir = Path(os.environ["FAULTY_FOLDER"]), Path(os.environ["GRPO_RUN_DIR"])
    fault = take_fault(folder)
    engine = subprocess.Popen([sys.executable, "-c", ENGINE])
    log = RunLog(str(run_dir), ckpt_dir=str(run_dir))
    resumed = read_flag("resume_from")
    done, last = int(resumed.rpartition("_")[2]) if resumed else 0, int(read_flag("steps") or 0)
    if done and not log.has_step(done):
        log.write_step(done, {"reward": done / 10, "policy_loss": 0.1})  # from the checkpoint
    if not log.is_evaluated(done):
        log.write_eval(done, {"exact_match": 0.5, "n": 4, "problems": 4, "seconds": 0.1})

    request = SaveRequest(RunFiles(run_dir).save_request)

    def generate(step: int) -> None:
        suffer(fault, step, "generate", engine)
        for _ in range(5 if fault.get("at") != step else 2000):
            time.sleep(0.1)
            if request.is_open() and "fails" in fault:
                request.fail(fault["fails"])
            elif request.is_open() and not fault.get("is_deaf"):
                copy(step - 1)
                request.close()
            while engine.poll() is None and read_status(engine.pid) == "T":
                time.sleep(0.1)  # OpenRLHF waits without limit
            if engine.poll() is not None:
                raise RuntimeError("Connection closed by peer")

    def train(step: int) -> None:
        suffer(fault, step, "train", engine)

    def copy(step: int) -> None:
        shutil.copytree(folder / "stock" / f"step_{step}", run_dir / "checkpoints" / f"step_{step}", dirs_exist_ok=True)

    def save(step: int) -> None:
        if step % int(read_flag("save_steps") or 1) == 0:
            copy(step)
        suffer(fault, step, "save", engine)

    for step in range(done + 1, last + 1):
        for phase in (generate, train, save):
            with log.phase(phase.__name__):
                phase(step)
        log.write_step(step, {"reward": step / 10, "policy_loss": 0.1})
    engine.kill()


def read_status(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


if __name__ == "__main__":
    main()
