"""Notices a run that makes no progress: a phase that lasts several times as long as usual."""

import statistics
import time
from typing import Any

from grpo.run.progress import Progress, is_number
from grpo.run.run_files import RunFiles
from grpo.stack.json_files import read_json

TIMES_USUAL = 5.0
FIRST_TIMES = 4.0  # of --hang_minutes: for a phase that this run has not completed yet
RECENT = 10
START, EVALUATE = "start", "evaluate"


class HangWatch:
    """Watches the phases of a run, by this process's own clock.

    Args:
        files: the run directory; the trainer notes each phase that it begins.
        progress: the lines so far.
        minutes: the shortest time without progress that counts as a hang; 0 for none.
    """

    def __init__(self, files: RunFiles, progress: Progress, minutes: float) -> None:
        self._files, self._progress, self._floor = files, progress, minutes * 60
        self._files.phase.unlink(missing_ok=True)  # of an earlier attempt
        self._seen: Any = None
        self._phase, self._step = START, 0
        self._since = time.monotonic()

    def look(self) -> None:
        """Note whether the run has got on since the last call."""
        try:
            phase = read_json(self._files.phase)
        except (OSError, ValueError):
            phase = None
        progress = self._progress
        seen = (phase, len(progress.metrics.rows), len(progress.evals.rows), progress.lost.count)
        if seen != self._seen:
            self._seen, self._since = seen, time.monotonic()
            if phase:
                self._phase, self._step = phase["phase"], phase["step"]

    def hang(self) -> str:
        """Return what hangs; "" while the run progresses, or may still."""
        self.look()
        seconds = time.monotonic() - self._since
        if not self._floor or seconds <= self.limit():
            return ""
        return f"no progress: {self._phase_of_step()} for {seconds / 60:.1f} min ({self._describe_usual()})"

    def limit(self) -> float:
        """Return the seconds that the current phase may take."""
        usual = self._usual()
        return FIRST_TIMES * self._floor if usual is None else max(self._floor, TIMES_USUAL * usual)

    def _phase_of_step(self) -> str:
        return "the start of engines and actor" if self._phase == START else f"step {self._step}: {self._phase}"

    def _describe_usual(self) -> str:
        usual = self._usual()
        return "for the first time in this run" if usual is None else f"usually {usual / 60:.1f} min"

    def has_new_steps(self) -> bool:
        """Return whether a step was completed in this attempt, or may have been and its line is lost."""
        return bool(self._progress.metrics.read_this_attempt() or self._progress.lost.count)

    def _usual(self) -> float | None:
        if self._phase == EVALUATE:
            times = [row.get("seconds") for row in self._progress.evals.rows]
        else:
            times = [row["seconds"].get(self._phase) for row in self._progress.metrics.rows if "seconds" in row]
        known = [seconds for seconds in times[-RECENT:] if is_number(seconds)]
        return statistics.median(known) if known else None
