"""What a run's directory says about the run: its lines, whether it is running, its progress, pace and time left.

This is the only reader of run directories. It reads runs in progress, ended in any way, resumed, moved, copied or of
another version. Imports nothing heavy.
"""

import signal
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo.run.eval_metric import get_value
from grpo.run.lost_writes import LOSSY
from grpo.run.progress import Progress, is_number, sort_by_step
from grpo.run.run_files import RunFiles, read_attempts
from grpo.stack.json_files import read_json
from grpo.stack.problem import UserError

RUNNING, FINISHED, STOPPED, CRASHED = "running", "finished", "stopped", "crashed"
# Exit codes of a run that somebody or the parity gate stopped: Ctrl-C, kill, a closed terminal or pipe; 3.
_STOPPED_CODES = {3} | {128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)}
# Steps used for the pace: few enough to follow responses that become longer.
RECENT = 20


def has_finished(end: Mapping[str, Any]) -> bool:
    """Tell whether a line of ends.jsonl is of a run that has made all its steps, even if it lost what it logged."""
    return end.get("code") == 0 or (end.get("code") == LOSSY and "lost" in end and not end.get("cause"))


class Run:
    """One run, as its directory was at the last :meth:`refresh`.

    Args:
        folder: the run directory.
        name: its name beside other runs; None for the folder's name.

    Attributes:
        files: its files.
        config: config.json's content; {} if it cannot be read.
        config_fault: why config.json cannot be read; "" if it can, or is missing.
        metrics, evals: the lines in step order, one per step.
        resumes: the lines of resumes.jsonl.
        progress: all lines of metrics.jsonl and eval.jsonl.
        code: the exit code of its last attempt; None if it is running or its end was not recorded.
        cause: why that attempt failed or was stopped; "" if it was not, or if that is unknown.
        state: RUNNING, FINISHED, STOPPED (by somebody) or CRASHED (also if killed or the machine went down).

    Raises:
        UserError: if the folder is not a run directory.
    """

    def __init__(self, folder: Path, name: str | None = None) -> None:
        remedy = "name a run directory"
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder", remedy)
        self.folder = folder.absolute()
        self.name = name or self.folder.name
        self.files = RunFiles(self.folder)
        self.progress = Progress(self.files, None)
        if not self.files.is_run() and not any(lines.path.is_file() for lines in self.progress.files):
            what = "neither config.json and command.sh, nor metrics.jsonl or eval.jsonl"
            raise UserError(f"{folder} is not a run directory (it has {what})", remedy)
        self.refresh()

    def refresh(self) -> list[str]:
        """Read new data. Return a line for every new step and evaluation."""
        # First, so that what a run wrote before its end is read after the end was seen.
        held = self.files.is_held()
        try:
            self.config, self.config_fault = self.files.read_config(), ""
        except UserError as error:
            self.config, self.config_fault = {}, error.problem.what
        self.resumes = read_attempts(self.files.resumes)
        if not any(lines.rows for lines in self.progress.files):  # --metrics_dir appears with the first line
            self.files = RunFiles(self.folder)
            self.progress = Progress(self.files, None)
        self.progress.steps = self.planned
        lines = self.progress.poll()
        self.metrics, self.evals = (sort_by_step(file.rows) for file in self.progress.files)
        end = {} if held else self._last_end()
        self.code, self.cause = end.get("code"), end.get("cause") or ""
        self.state = RUNNING if held else FINISHED if has_finished(end) else self._end()
        return lines

    def _last_end(self) -> dict[str, Any]:
        ends = read_attempts(self.files.ends)
        is_of_last_attempt = ends and (
            not self.resumes or (ends[-1].get("time") or 0) >= (self.resumes[-1].get("time") or 0)
        )
        return ends[-1] if is_of_last_attempt else {}

    def _end(self) -> str:
        if self.code is not None:
            return STOPPED if self.code in _STOPPED_CODES else CRASHED
        is_done = self.step >= (self.planned or 0) and (self.save_path / "adapter_config.json").is_file()
        return FINISHED if is_done else CRASHED

    def read(self, file: Path) -> dict[str, Any]:
        """Return the object in a file of the directory; {} if it is missing or broken."""
        try:
            value = read_json(file)
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def part(self, name: str) -> dict[str, Any]:
        """Return an object of config.json; {} if it is missing. "flags" are OpenRLHF's."""
        part = self.config.get(name)
        return part if isinstance(part, dict) else {}

    @property
    def step(self) -> int:
        """Return the last logged step; 0 if there is none."""
        return self.metrics[-1]["step"] if self.metrics else 0

    @property
    def planned(self) -> int | None:
        """Return the planned number of steps; None if unknown."""
        steps = self.part("plan").get("steps") or self.part("flags").get("max_steps")
        return steps if isinstance(steps, int) else None

    @property
    def save_path(self) -> Path:
        """Return the path of the final adapter."""
        return self.files.find_folder("save_path", self.config)

    @property
    def ckpt_path(self) -> Path:
        """Return the folder of the checkpoints."""
        return self.files.find_folder("ckpt_path", self.config)

    @property
    def graded(self) -> list[dict[str, Any]]:
        """Return the lines of evaluations that were graded."""
        return [row for row in self.evals if is_number(get_value(row))]

    @property
    def has_stepped(self) -> bool:
        """Tell whether the run has logged a step since it started or was resumed last."""
        begun = self.resumes[-1]["time"] if self.resumes else 0.0
        return any(not is_number(row.get("time")) or row["time"] >= begun for row in self.metrics[-1:])

    def seconds_a_step(self) -> float | None:
        """Return the median seconds per step, without evaluations, over the RECENT steps."""
        rows = self.metrics[-RECENT:]
        times = [seconds for row in rows if (seconds := _total(row)) is not None]
        return statistics.median(times) if times else None

    def seconds_left(self) -> float | None:
        """Return the seconds from the last step to the run's end, evaluations included; None if unknown."""
        pace = self.seconds_a_step()
        if self.state != RUNNING or self.planned is None or pace is None or not self.has_stepped:
            return None
        evals = [row["seconds"] for row in self.evals if is_number(row.get("seconds"))]
        return (self.planned - self.step) * pace + self._evals_left(self.planned) * (evals or [0.0])[-1]

    def _evals_left(self, planned: int) -> int:
        every = self.part("flags").get("eval_steps")
        if not self.part("flags").get("eval_dataset") or not is_number(every) or every < 1:
            return 0
        due = {*range(int(every), planned + 1, int(every)), planned}
        done = {row["step"] for row in self.evals}
        return sum(step >= self.step and step not in done for step in due)


def _total(row: Mapping[str, Any]) -> float | None:
    seconds = row.get("seconds")
    total = seconds.get("total") if isinstance(seconds, Mapping) else None
    return total if is_number(total) else None
