"""Prints what the diagnosis finds while a run is going, once per onset."""

import logging
from collections.abc import Mapping
from typing import Any

from grpo.diagnosis.diagnose import Monitor
from grpo.run.progress import Progress

logger = logging.getLogger(__name__)


class Onsets:
    """The findings of a run since the last call.

    Args:
        progress: of the run; findings in the steps that it already holds count as reported.
        config: config.json.
    """

    def __init__(self, progress: Progress, config: Mapping[str, Any]) -> None:
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
