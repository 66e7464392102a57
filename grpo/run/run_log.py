"""The run directory as the trainer writes it: metrics.jsonl, eval.jsonl, samples/step_N.jsonl, seconds per phase."""

import json
import logging
import math
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from grpo.environments.settings import environments_by_prompt
from grpo.run import trackers
from grpo.run.eval_metric import EXACT_MATCH
from grpo.run.records import index_by_prompt
from grpo.run.run_files import LostWrites, RunFiles, read_steps
from grpo.run.trackers import Trackers
from grpo.stack import machine
from grpo.stack.json_files import replace, replace_rows
from grpo.stack.upstream import Arguments, PromptDataset, Tokenizer

if TYPE_CHECKING:  # the log is written without torch
    from grpo.rollout.rows import Sample

logger = logging.getLogger("openrlhf.grpo.run_log")

WINDOW = 10  # steps of a rolling metric; the log keeps those before the current one


class RunLog:
    """Appends to the files of one run.

    Args:
        metrics_dir: the folder of ``metrics.jsonl``, ``eval.jsonl`` and ``samples/``; None for ``run_dir``.
        ckpt_dir: the folder of the checkpoints; None for ``run_dir``.
        trackers: get every step and evaluation too.
        sample_limit: the number of rollouts to write per step besides its extremes; None for all.
        problems: ``id`` and ``datasource`` of the training problems by prompt, see :mod:`grpo.run.records`.
    """

    def __init__(
        self,
        run_dir: str,
        metrics_dir: str | None = None,
        ckpt_dir: str | None = None,
        trackers: Trackers | None = None,
        sample_limit: int | None = None,
        problems: Mapping[str, dict[str, str]] | None = None,
    ) -> None:
        self._files = RunFiles(Path(run_dir), Path(metrics_dir or run_dir))
        for folder in (self._files.samples, self._files.metrics.parent, self._files.logs):
            folder.mkdir(parents=True, exist_ok=True)
        self._folders = {Path(folder or run_dir) for folder in (run_dir, metrics_dir, ckpt_dir)}
        self._sample_limit = sample_limit
        self._problems = problems or {}
        self.trackers = trackers or Trackers()
        self._window: deque[dict[str, Any]] = deque(read_steps(self._files.metrics), maxlen=WINDOW - 1)
        self._step = self._window[-1]["step"] if self._window else 0
        self._loop = threading.get_ident()  # with --pipeline, another thread samples beside the loop's phases
        self._lost = LostWrites(self._files.lost_writes)
        self._seconds: dict[str, float] = defaultdict(float)
        self._step_started = time.monotonic()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds of the context to a phase of the current step."""
        started = time.monotonic()
        if threading.get_ident() == self._loop:
            self.note_phase(name, self._step + 1)
        try:
            yield
        finally:
            self.note_seconds(name, time.monotonic() - started)

    def note_seconds(self, phase: str, seconds: float) -> None:
        """Add seconds to a phase of the current step."""
        self._seconds[phase] += seconds

    def note_phase(self, phase: str, step: int) -> None:
        """Note the phase that begins now, for the launcher's detection of hangs."""
        note = json.dumps({"phase": phase, "step": step, "time": time.time()})
        self._attempt(self._files.phase, lambda: replace(self._files.phase, note + "\n"))

    def write_rollouts(self, step: int, samples: Sequence["Sample"], tokenizer: Tokenizer) -> None:
        """Write one global step's rollouts before its checkpoint: a run resumed from it does not draw them again."""
        from grpo.run import sample_records  # imports PyTorch and Ray

        try:
            records = sample_records.describe_samples(samples, tokenizer, self._sample_limit, self._problems)
        except Exception as error:  # this step's checkpoint comes next, and a failed log must not prevent it
            self._lose(f"the rollouts of step {step}", error)
            return
        self.write_samples(f"step_{step}", records)

    def write_step(self, step: int, status: dict[str, Any], *, is_timed: bool = True) -> None:
        """Append the line of one global step to metrics.jsonl, and start the clock of the next.

        ``seconds`` holds the phases and their ``total``, ``grad_norms`` the norm of each optimizer step. A number that
        is not finite is left out, counted and logged.

        Args:
            is_timed: whether this process ran the step, and so knows its seconds.
        """
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        seconds["total"], self._step_started = time.monotonic() - self._step_started, time.monotonic()
        numbers = {name: value for name, value in status.items() if isinstance(value, int | float)}
        numbers["host_memory"] = float(machine.memory_total() - machine.memory_available())
        numbers["disk_free"] = float(min(machine.disk_free(folder) for folder in self._folders))
        if is_timed and "sampled_tokens" in numbers:
            numbers["tokens_per_second"] = numbers["sampled_tokens"] / seconds["total"]
        rolling = rolling_correlation([*self._window, numbers])
        if rolling is not None:
            numbers["reward_correct_correlation_rolling"] = rolling
        dropped = [name for name, value in numbers.items() if not math.isfinite(value)]
        if dropped:
            logger.warning("step %d: not finite and left out: %s", step, ", ".join(dropped))
        row: dict[str, Any] = {
            "step": step,
            "time": time.time(),
            **({"seconds": seconds} if is_timed else {}),
            "lost_writes": self._lost.count,
            **{name: value for name, value in numbers.items() if name not in dropped},
            "dropped_values": len(dropped),
            "grad_norms": status.get("grad_norms", []),
        }
        self._append(self._files.metrics, row)
        self._step = step
        self._window.append(row)
        self.trackers.log("train", step, {name: value for name, value in row.items() if name not in ("step", "time")})

    def has_step(self, step: int) -> bool:
        """Return whether metrics.jsonl has a line for this step."""
        return any(row["step"] == step for row in read_steps(self._files.metrics))

    def is_evaluated(self, step: int) -> bool:
        """Return whether eval.jsonl has a line for this step."""
        return any(row["step"] == step for row in read_steps(self._files.evals))

    def write_eval(self, step: int, result: dict[str, Any]) -> None:
        """Append the line of one evaluation to eval.jsonl, and its exact match to the step's line."""
        self._append(self._files.evals, {"step": step, "time": time.time(), **result})
        self.add_exact_match(step)
        self.trackers.log("eval", step, result)
        self._step_started = time.monotonic()  # its seconds are not part of any training step

    def add_exact_match(self, step: int) -> None:
        """Add the exact match of a step's evaluation to the step's line, the last one, if there was an evaluation."""
        rows, evaluations = read_steps(self._files.metrics), read_steps(self._files.evals)
        found = [row[EXACT_MATCH] for row in evaluations if row.get("step") == step and EXACT_MATCH in row]
        if found and rows and rows[-1].get("step") == step and rows[-1].get(EXACT_MATCH) != found[-1]:
            rows[-1][EXACT_MATCH] = found[-1]
            self._attempt(self._files.metrics, lambda: replace_rows(self._files.metrics, rows))

    def write_parity(self, row: dict[str, Any]) -> None:
        """Append the line of one comparison of engines and trainer to parity.jsonl."""
        self._append(self._files.parity, row)

    def write_samples(self, name: str, samples: Sequence[dict[str, Any]]) -> None:
        """Write one file of rollouts, ``samples/<name>.jsonl``, one JSON object per rollout."""
        file, rows = self._files.samples / f"{name}.jsonl", [_finite(sample) for sample in samples]
        self._attempt(file, lambda: replace_rows(file, rows))

    def _append(self, file: Path, record: dict[str, Any]) -> None:
        # Ends a line that a full disk has cut, so that it does not corrupt the next one.
        begin = "" if _ends_a_line(file) else "\n"
        text = begin + json.dumps(_finite(record), allow_nan=False) + "\n"

        def append() -> None:
            with file.open("a", encoding="utf-8") as opened:
                opened.write(text)

        self._attempt(file, append)

    def _attempt(self, file: Path, write: Callable[[], None]) -> None:
        # A full disk must not end a run of days. The loss is counted and reported, and the next line is tried again.
        try:
            write()
        except OSError as error:
            self._lose(str(file), error)

    def _lose(self, what: str, error: Exception) -> None:
        logger.error("%s was not written: %s", what, error, exc_info=not isinstance(error, OSError))
        try:
            self._lost.add(self._step + 1, f"{what}: {getattr(error, 'strerror', None) or error}")
        except OSError as another:
            logger.error("the launcher was not told: %s", another)


def _ends_a_line(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            opened.seek(-1, os.SEEK_END)
            return opened.read(1) == b"\n"
    except OSError:  # missing or empty file
        return True


def _finite(value: Any) -> Any:
    """Return ``value`` with null in place of numbers that JSON cannot represent."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def rolling_correlation(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the correlation of reward and correctness over the rollouts of several steps; None without spread.

    It is computed from each line's means and spreads; one without correctness is skipped. It is exact if correctness
    is 0 or 1, since steps have equally many rollouts.
    """
    known = [row for row in rows if row.get("correct") is not None and row.get("reward_std") is not None]
    if not known:
        return None
    reward, right = (fmean(row[name] for row in known) for name in ("reward", "correct"))
    covariance = fmean(
        (row.get("reward_correct_correlation") or 0.0) * row["reward_std"] * _binary_spread(row["correct"])
        + (row["reward"] - reward) * (row["correct"] - right)
        for row in known
    )
    variance = fmean(row["reward_std"] ** 2 + (row["reward"] - reward) ** 2 for row in known)
    scale = math.sqrt(variance) * _binary_spread(right)
    return covariance / scale if scale > 1e-12 else None


def _binary_spread(mean: float) -> float:
    return math.sqrt(max(0.0, mean * (1 - mean)))


def open_log(args: Arguments, problems: PromptDataset, step: int, states: dict[str, Any]) -> RunLog:
    """Return the log of a run, which has a line for the step that it continues from.

    Args:
        problems: for training.
        step: the last one that was made; 0 at the start of a run.
        states: that the controller starts from, see :func:`grpo.checkpoint.trainer_state.collect_controller_state`.
    """
    known = index_by_prompt(
        Path(args.prompt_data), zip(problems.datasources, problems.prompts, strict=True), environments_by_prompt(args)
    )
    services = trackers.start(args, step)
    log = RunLog(args.run_dir, args.metrics_dir, args.ckpt_path, services, args.log_samples, known)
    if step and not log.has_step(step):  # killed between saving and logging, or the line was cut
        log.write_step(step, states["status"], is_timed=False)
    log.add_exact_match(step)
    return log
