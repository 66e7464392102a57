"""A run of the launcher around the stand-in trainer, which suffers planned faults."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.supervised import list_children, wait_until

LAUNCHER = Path(__file__).with_name("faulty_launcher.py")


class Run:
    """A run of the launcher around the stand-in trainer; `faults` has one entry for each of its starts."""

    def __init__(self, setting, steps: int, faults: list[dict], **flags: object) -> None:
        self.folder = setting.run_dir
        (setting.folder / "faults.jsonl").write_text("".join(json.dumps(fault) + "\n" for fault in faults))
        flags = {"max_steps": steps, "save_steps": 1, "eval_steps": 10, "restarts": 3} | flags
        words = setting.make_launch_words(**flags)
        root = str(LAUNCHER.parents[3])
        self.launcher = subprocess.Popen(
            [sys.executable, str(LAUNCHER), "--run-dir", str(self.folder), *words],
            env={**os.environ, "PYTHONPATH": root, "FAULTY_FOLDER": str(setting.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def list_launchers(self) -> list[int]:
        """Return the child of the guard, which owns the run, if it has started."""
        return list_children(self.launcher.pid)

    def finish(self) -> list[str]:
        output, _ = self.launcher.communicate(timeout=500)
        return output.splitlines()

    def read_rows(self, name: str) -> list[dict]:
        file = self.folder / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def wait_for_step(self, step: int) -> None:
        wait_until(lambda: any(row["step"] == step for row in self.read_rows("metrics.jsonl")), "the step did not come")

    def read_learned(self) -> list[tuple]:
        return [(row["step"], row["reward"]) for row in self.read_rows("metrics.jsonl")]
