"""What a run's directory says about the run: its lines, whether it is running, its pace, its settings.

This is the only reader of run directories. It reads runs in progress, ended in any way, resumed, moved, copied or of
another version. Imports nothing heavy.
"""

import json
import signal
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo.run.eval_metric import get_value
from grpo.run.progress import Progress, is_number, sort_by_step
from grpo.run.run_files import LOSSY, RunFiles, read_attempts
from grpo.stack.json_files import read_json
from grpo.stack.problem import UserError

RUNNING, FINISHED, STOPPED, CRASHED = "running", "finished", "stopped", "crashed"
# Exit codes of a run that a person or the parity gate stopped: Ctrl-C, kill, a closed terminal or pipe; 3.
_STOPPED_CODES = {3} | {128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)}
# Steps used for the pace: few enough to follow responses that become longer.
RECENT = 20
# These differ between any two runs and affect nothing.
PLACES = {"run_dir", "metrics_dir", "ckpt_path", "save_path", "engine_model", "resume_from", "wandb_run_name"}
# Of config.json: what `settings` names itself, and what follows from the rest.
_LEFT_OUT = {"flags", "given", "changes", "script", "sources", "plan", "judge", "openrlhf"}
ABSENT = "-"


def has_finished(end: Mapping[str, Any]) -> bool:
    """Return whether a line of ends.jsonl belongs to a run that did all its steps, even if it lost what it logged."""
    return end.get("code") == 0 or (end.get("code") == LOSSY and "lost" in end and not end.get("cause"))


class Run:
    """One run, as its directory was at the last :meth:`refresh`. Raises UserError if the folder is not a run directory.

    Args:
        name: its name beside other runs; None for the folder's name.

    Attributes:
        config: config.json's content; {} if it cannot be read.
        config_fault: why config.json cannot be read; "" if it can, or is missing.
        metrics, evals: the lines in step order, one per step.
        resumes: the lines of resumes.jsonl.
        progress: all lines of metrics.jsonl and eval.jsonl.
        code: the exit code of its last attempt; None if it is running or its end was not recorded.
        cause: why that attempt failed or was stopped; "" if it was not, or if that is unknown.
        state: RUNNING, FINISHED, STOPPED (by somebody) or CRASHED (also if killed or the machine went down).
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
        """Return the end of the last attempt; {} if it was not recorded."""
        begun = (self.resumes[-1].get("time") or 0) if self.resumes else 0
        return next((end for end in read_attempts(self.files.ends)[-1:] if (end.get("time") or 0) >= begun), {})

    def _end(self) -> str:
        if self.code is not None:
            return STOPPED if self.code in _STOPPED_CODES else CRASHED
        is_done = self.step >= (self.planned or 0) and (self.save_path / "adapter_config.json").is_file()
        return FINISHED if is_done else CRASHED

    def read(self, file: Path) -> dict[str, Any]:
        """Return the object in a file of the directory; {} if it is missing or broken."""
        try:
            return _as_object(read_json(file))
        except (OSError, ValueError):
            return {}

    def part(self, name: str) -> dict[str, Any]:
        """Return an object of config.json; {} if it is missing. "flags" are OpenRLHF's."""
        return _as_object(self.config.get(name))

    @property
    def about_judge(self) -> str:
        """Return a note that a local server stood in for the judge; "" if none did."""
        is_stand_in = self.config.get("judge_is_stand_in")
        return "a local server stood in for the judge: its scores mean nothing" if is_stand_in else ""

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
        """Return whether the run has logged a step since it started or was resumed last."""
        begun = self.resumes[-1]["time"] if self.resumes else 0.0
        return any(not is_number(row.get("time")) or row["time"] >= begun for row in self.metrics[-1:])

    def seconds_a_step(self) -> float | None:
        """Return the median seconds per step, without evaluations, over the RECENT steps."""
        rows = self.metrics[-RECENT:]
        times = [total for row in rows if is_number(total := _as_object(row.get("seconds")).get("total"))]
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


def _as_object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def settings(run: Run) -> dict[str, str]:
    """Return everything known to affect a run: flags, judge, data, versions, hardware, patches."""
    environment, patches = run.read(run.files.environment), run.read(run.files.patches)
    packages = environment.pop("packages", None)
    parts: dict[str, Any] = {
        **{key: value for key, value in run.config.items() if key not in _LEFT_OUT},
        **run.part("flags"),
        **({} if run.config.get("judge_off") else run.part("judge")),
        **environment,
        **{f"package {key}": value for key, value in _as_object(packages).items()},
        **({"patches": patches["digest"]} if "digest" in patches else {}),
    }
    return {key: text for name, value in parts.items() if name not in PLACES for key, text in _flat(name, value)}


def list_edits(run: Run) -> list[list[str]]:
    """Return what differs from the shipped recipe: flag, value, what it would be, and where it was set."""
    changed = run.part("changes").items()
    return [[name, *map(_text, parts)] for name, parts in changed if isinstance(parts, list) and len(parts) == 3]


def differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the settings in which runs differ, with each run's value."""
    of_runs = [settings(run) for run in runs]
    rows = {name: [other.get(name, ABSENT) for other in of_runs] for one in of_runs for name in one}
    return {name: row for name, row in rows.items() if len(set(row)) > 1}


def changes(run: Run) -> list[tuple[str, str, str, str]]:
    """Return what was changed at resumptions: step, name, old, new."""
    return [
        (_text(row.get("step")), name, _text(pair[0]), _text(pair[1]))
        for row in run.resumes
        for name, pair in _as_object(row.get("changed")).items()
        if isinstance(pair, list) and len(pair) == 2
    ]


def _flat(name: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in _flat(f"{name}.{key}", inner)]
    return [(name, _text(value))]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
