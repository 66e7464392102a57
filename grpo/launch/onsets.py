"""Tells the user of a run that goes on what the diagnosis finds in it, once per onset."""

import logging
from collections.abc import Mapping
from typing import Any

from grpo.diagnosis.diagnose import Monitor
from grpo.run.progress import Progress

logger = logging.getLogger(__name__)


class Onsets:
    """Findings of a run since they were last asked for.

    Args:
        progress: of the run; what it holds already, of the part that is continued, is taken as told.
        config: config.json.
    """

    def __init__(self, progress: Progress, config: Mapping[str, Any]) -> None:
        self._progress, self._monitor, self._seen = progress, Monitor(config), 0
        self.new_lines()

    def new_lines(self) -> list[str]:
        """Return a line for every new onset; nothing is computed before there is another step or evaluation."""
        rows, evals = self._progress.metrics.rows, self._progress.evals.rows
        if len(rows) + len(evals) == self._seen:
            return []
        self._seen = len(rows) + len(evals)
        try:
            return [f"! {finding.headline()}" for finding in self._monitor.new_onsets(rows, evals)]
        except Exception as error:  # whatever a rule trips over, the run goes on
            logger.warning("the diagnosis failed after step %s: %s", self._progress.step, error)
            return []
