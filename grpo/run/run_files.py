"""The files of a run directory: their names, the lock, and what the launcher notes in them.

The launcher and the trainer (:class:`grpo.run.run_log.RunLog`) write it, and :class:`grpo.run.run_state.Run` reads it.
Imports nothing heavy.
"""

import fcntl
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo.run.eval_metric import get_value, keep_last_eval_metric
from grpo.stack.command import format_count
from grpo.stack.json_files import Types, has_types, open_file, read_json, read_rows, replace_rows
from grpo.stack.problem import UserError

STEP_DIRECTORY = re.compile(r"step_(0|[1-9][0-9]*)")
# A process that checks whether the run is alive takes the lock for a moment, see RunFiles.is_held.
LOCK_TRIES = 5
_SAMPLE: Types = {"id": (str, int), "prompt": str, "response": str, "extremes": list}
_PARTS = ("flags", "judge", "plan", "reward", "data_sha256", "reward_sha256", "sources")  # of config.json
_ATTEMPT: Types = {"time": (int, float), "code": int}  # a line of ends.jsonl or resumes.jsonl
SPACE = 8192  # bytes for the lost writes: a path may have 4,096
LOSSY = 1  # the exit code of a run that did all its steps, but could not write everything


class RunFiles:
    """The files of one run.

    Args:
        folder: the run directory.
        metrics_dir: the folder of metrics.jsonl, eval.jsonl and samples/. None looks it up: beside the other files
            (also after a move or copy), or the --metrics_dir that config.json records.

    Attributes:
        config, environment, patches, command: written by the launcher before the run.
        resumes, ends: a line for each resume, and for each end that the launcher saw.
        phase: what the trainer is doing now.
        lost_writes: what it could not write, see :class:`LostWrites`.
        wandb, trackio: the run's pages, see :mod:`grpo.run.trackers`.
        save_request: exists while the launcher waits for a checkpoint.
        start: a copy of the adapter that the run started from, if it started from one.
        checkpoints, final: the default folders, see :meth:`find_folder`.
        metrics, evals, parity: a line for each step, evaluation, and comparison of engines and trainer.
    """

    def __init__(self, folder: Path, metrics_dir: Path | None = None) -> None:
        self.folder = folder
        self.config, self.environment = folder / "config.json", folder / "env.json"
        self.patches, self.command = folder / "patches.json", folder / "command.sh"
        self.resumes, self.ends = folder / "resumes.jsonl", folder / "ends.jsonl"
        self.wandb, self.trackio = folder / "wandb.json", folder / "trackio.json"
        self.lock, self.save_request = folder / ".lock", folder / ".save-request"
        self.logs, self.checkpoints, self.final = folder / "logs", folder / "checkpoints", folder / "final"
        self.start = folder / "start"
        self.phase = self.logs / "phase.json"
        self.lost_writes = self.logs / "lost-writes.json"
        metrics = metrics_dir or self._metrics_dir()
        self.metrics, self.evals = metrics / "metrics.jsonl", metrics / "eval.jsonl"
        self.parity = metrics / "parity.jsonl"
        self.samples = metrics / "samples"

    def _metrics_dir(self) -> Path:
        if any((self.folder / name).is_file() for name in ("metrics.jsonl", "eval.jsonl")):
            return self.folder
        try:
            return self.find_folder("metrics_dir", self.read_config())
        except UserError:
            return self.folder

    def is_run(self) -> bool:
        """Return whether the folder is a run directory."""
        return self.command.is_file() and self.config.is_file()

    def read_config(self) -> dict[str, Any]:
        """Return the contents of config.json; {} if it is missing. Raises UserError if it is invalid."""
        try:
            config = read_json(self.config)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise UserError(f"{self.config} cannot be read ({error})", "restore it from a copy") from None
        is_sound = isinstance(config, dict) and has_types(config, dict.fromkeys(_PARTS, dict))
        if not (is_sound and has_types(config.get("flags") or {}, {"run_dir": str})):
            raise UserError(f"{self.config} was not written by the launcher", "restore it from a copy")
        return config

    def find_folder(self, flag: str, config: Mapping[str, Any]) -> Path:
        """Return the folder that a flag of the run names. If it was inside the run directory, it moves along with it.

        Args:
            flag: "metrics_dir", "ckpt_path" or "save_path".
            config: the contents of config.json. Without the flag, the default inside the run directory is returned.
        """
        try:
            recorded, run_dir = Path(config["flags"][flag]), config["flags"].get("run_dir")
        except (KeyError, TypeError):
            return {"metrics_dir": self.folder, "ckpt_path": self.checkpoints, "save_path": self.final}[flag]
        is_inside = run_dir and recorded.is_relative_to(run_dir)
        return self.folder / recorded.relative_to(run_dir) if is_inside else recorded

    def sample_files(self, kind: str) -> dict[int, Path]:
        """Return the files of rollouts ("step") or evaluations ("eval") by step, in order."""
        files = {file.stem.partition("_")[2]: file for file in self.samples.glob(f"{kind}_*.jsonl")}
        return {int(number): files[number] for number in sorted(filter(str.isdecimal, files), key=int)}

    def refuse_another_owner(self) -> None:
        """Raise UserError if the folder belongs to another user, who can replace what this one reads or runs of it."""
        owner = self.folder.stat().st_uid if self.folder.exists() else os.geteuid()
        if owner not in (os.geteuid(), 0):
            raise UserError(
                f"{self.folder} belongs to another user (id {owner}), who can replace its files",
                "name a folder of your own with --run-dir, or resume a copy of the run",
            )

    def hold(self) -> int:
        """Hold the lock while this process, or one that inherits the returned file descriptor, lives.

        Raises UserError if another process holds it, it cannot be opened, or the folder belongs to another user.
        """
        self.refuse_another_owner()  # also of a folder that appeared after the checks
        try:
            descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o644)
        except OSError as error:
            raise UserError(f"{self.lock} cannot be opened ({error.strerror})", "remove it, or free the disk") from None
        for _ in range(LOCK_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                time.sleep(0.05)
        os.close(descriptor)
        raise UserError(f"the run in {self.folder} is still running or shutting down", "wait, or end it with Ctrl-C")

    def is_held(self) -> bool:
        """Return whether a process holds the lock. It takes a shared one for a moment, so several readers may check."""
        try:
            descriptor = os.open(self.lock, os.O_RDONLY | os.O_NONBLOCK)  # a named pipe would block
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def note_end(self, code: int, **more: Any) -> None:
        """Append the exit code of this attempt to ends.jsonl. A killed launcher leaves no line.

        Args:
            more: ``lost``, the writes that the run lost; ``cause``, also the signal that stopped it; of a failure:
                ``remedy``, and what :func:`grpo.launch.attempt.decide` needs.
        """
        _append(self.ends, {"time": time.time(), "code": code, **more})

    def note_resume(self, step: int, changed: Mapping[str, Any]) -> None:
        """Append a resume after a step to resumes.jsonl, with the old and the new value of each changed setting."""
        _append(self.resumes, {"time": time.time(), "step": step, "changed": changed})

    def rewind(self, step: int) -> None:
        """Remove what was logged after `step`, lines and samples files. A resumed run repeats those steps."""
        for file in (self.metrics, self.evals):
            if file.exists():
                replace_rows(file, [row for row in read_steps(file) if row["step"] <= step])
        for kind in ("step", "eval"):
            for number, file in self.sample_files(kind).items():
                if number > step:
                    file.unlink()


class LostWrites:
    """What a run could not write, as its file had it at the last call: the trainer counts, the launcher tells the user.

    Attributes:
        count: all writes that were lost and not made again.
        first: the step in which the first of them was lost.
        last: the path of the last one, and why it was not written.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.count, self.first, self.last = 0, 0, ""
        self.refresh()

    def begin(self, step: int) -> None:
        """Reserve space, and forget what a run that continues after `step` writes again. Raises OSError if full."""
        if not self.count or self.first > step:
            self.count = 0
            self._file.write_text(" " * SPACE, encoding="utf-8")  # a full disk has none later

    def add(self, step: int, last: str) -> None:
        """Count a write that was lost in `step`. Raises OSError if even this cannot be written."""
        self.count, self.first, self.last = self.count + 1, self.first if self.count else step, last
        text = json.dumps({"count": self.count, "first": self.first, "last": last[: SPACE // 2]})
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o600)  # in place: a new file would need space
        try:
            os.write(descriptor, text.encode().ljust(SPACE))
        finally:
            os.close(descriptor)

    def refresh(self) -> bool:
        """Read the file; return whether more was lost since the last call."""
        before = self.count
        try:
            row = read_json(self._file)
            self.count, self.first, self.last = int(row["count"]), int(row["first"]), str(row["last"])
        except (OSError, ValueError, TypeError, KeyError):  # nothing was lost, the trainer is writing, or not ours
            return False
        return self.count > before

    def describe(self) -> str:
        """Return what was lost, for the user."""
        return f"{format_count(self.count, 'write')} failed since step {self.first} (last: {self.last})"


def step_name(step: int | str) -> str:
    """Return the name of a step's checkpoint; of "*", a pattern for all of them."""
    return f"step_{step}"


def parse_step(checkpoint: Path) -> int:
    """Return the step of a checkpoint by its name. Raises ValueError for another name."""
    return int(checkpoint.name.removeprefix(step_name("")))


def saved_steps(checkpoints: str | Path) -> list[int]:
    """Return the steps of the checkpoints, ascending. One gets its name when it is complete."""
    found = (path.parent for path in Path(checkpoints).glob(f"{step_name('*')}/adapter") if path.is_dir())
    return sorted(parse_step(path) for path in found if STEP_DIRECTORY.fullmatch(path.name))


def has_step(row: Mapping[str, Any]) -> bool:
    """Return whether an object is a line of a step."""
    step = row.get("step")
    return isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 2**53


def read_steps(file: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl or eval.jsonl that have a step."""
    return list(filter(has_step, read_rows(file)))


def held_out(eval_file: Path) -> dict[int, float]:
    """Return what was measured on the held-out problems by step, from eval.jsonl; {} if the file is missing.

    An evaluation that graded fewer problems than others measured other problems, and is left out. So are those from
    before a resume with another reward.
    """
    rows = keep_last_eval_metric([row for row in read_steps(eval_file) if get_value(row) is not None])
    most = max((row.get("n") or 0 for row in rows), default=0)
    return {row["step"]: get_value(row) for row in rows if (row.get("n") or 0) == most}


def read_attempts(file: Path) -> list[dict[str, Any]]:
    """Return the lines of ends.jsonl or resumes.jsonl."""
    return read_rows(file, _ATTEMPT)


def read_samples(file: Path) -> list[dict[str, Any]]:
    """Return the records of a file of rollouts. Records whose texts are not strings are left out and logged."""
    return read_rows(file, _SAMPLE)


def _append(file: Path, row: Mapping[str, Any]) -> None:
    with open_file(file, "ab") as opened:
        # A cause may name a file whose name is not UTF-8. Readers leave out a line with half a character.
        opened.write(json.dumps(row, ensure_ascii=False).encode(errors="replace") + b"\n")
