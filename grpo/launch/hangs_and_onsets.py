"""What the launcher notices while a run goes on: a phase that hangs, and the onset of what the diagnosis knows."""

import logging
import statistics
import time
from collections.abc import Mapping
from typing import Any

from grpo.run.progress import Progress, is_number
from grpo.run.run_files import RunFiles
from grpo.stack.json_files import read_json

TIMES_USUAL = 5.0
FIRST_TIMES = 4.0  # of --hang_minutes: for a phase that this run has not completed yet
RECENT = 10
START, EVALUATE = "start", "evaluate"
logger = logging.getLogger(__name__)


class HangWatch:
    """Notices a phase that lasts several times as long as usual, by this process's own clock.

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

    def hang(self) -> str:
        """Note whether the run has got on since the last call; return what hangs, or ""."""
        self._look()
        seconds, usual = time.monotonic() - self._since, self._find_usual()
        limit = FIRST_TIMES * self._floor if usual is None else max(self._floor, TIMES_USUAL * usual)
        if not self._floor or seconds <= limit:
            return ""
        where = "the start of engines and actor" if self._phase == START else f"step {self._step}: {self._phase}"
        than = "for the first time in this run" if usual is None else f"usually {usual / 60:.1f} min"
        return f"no progress: {where} for {seconds / 60:.1f} min ({than})"

    def has_new_steps(self) -> bool:
        """Return whether a step was completed in this attempt, or may have been and its line is lost."""
        return bool(self._progress.metrics.read_this_attempt() or self._progress.lost.count)

    def _look(self) -> None:
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

    def _find_usual(self) -> float | None:
        """Return the median seconds of the current phase."""
        if self._phase == EVALUATE:
            times = [row.get("seconds") for row in self._progress.evals.rows]
        else:
            times = [row["seconds"].get(self._phase) for row in self._progress.metrics.rows if "seconds" in row]
        known = [seconds for seconds in times[-RECENT:] if is_number(seconds)]
        return statistics.median(known) if known else None


class Onsets:
    """What the diagnosis finds while a run is going, once per onset.

    Args:
        progress: of the run; findings in the steps that it already holds count as reported.
        config: config.json.
    """

    def __init__(self, progress: Progress, config: Mapping[str, Any]) -> None:
        from grpo.diagnosis.diagnose import Monitor  # here, since only a run needs numpy

        self._progress, self._monitor, self._seen = progress, Monitor(config), 0
        self.new_lines()

    def new_lines(self) -> list[str]:
        """Return a line for every new onset. Computes nothing until another step or evaluation arrives."""
        rows, evals = self._progress.metrics.rows, self._progress.evals.rows
        if len(rows) + len(evals) == self._seen:
            return []
        self._seen = len(rows) + len(evals)
        try:
            return [f"! {finding.headline()}" for finding in self._monitor.new_onsets(rows, evals)]
        except Exception as error:  # a faulty rule must not stop the run
            logger.warning("the diagnosis failed after step %s: %s", self._progress.step, error)
            return []
