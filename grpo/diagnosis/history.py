"""A run as the rules see it: its columns, evaluations and settings."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from grpo.diagnosis.finding import HELD_OUT_SCORE, NotJudged
from grpo.diagnosis.series import Series
from grpo.run.measure import EXACT_MATCH, SCORE, get_name, get_value, is_whole, keep_last_measure, read_measure
from grpo.run.progress import sort_by_step
from grpo.run.run_files import RunFiles
from grpo.run.run_state import RUNNING, Run
from grpo.run.saved_steps import saved_steps
from grpo.settings.table import SETTINGS
from grpo.stack.problem import UserError

MASTERED = 0.9  # of the scale: above it, little gain is possible
UNKNOWN_WARM_UP = 5  # steps to skip if neither a learning rate nor a plan tells how long the warmup was


@dataclass
class RunHistory:
    """The numbers of a run so far.

    Attributes:
        rows: lines of metrics.jsonl, one per step, in step order.
        evals: lines of eval.jsonl with an exact match, or all with a score, likewise.
        config: the contents of config.json; {} without one.
        notes: what was left out in reading.
        is_late: whether `rows` begin after the warmup.
        folder: the run directory, if it is known.
    """

    rows: list[Mapping[str, Any]]
    evals: list[Mapping[str, Any]] = field(default_factory=list)
    config: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    is_late: bool = False
    folder: Path | None = None
    _columns: dict[str, Series] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def steps(self) -> np.ndarray:
        """Return the steps of all rows, [N] int64."""
        return np.array([row["step"] for row in self.rows], dtype=np.int64)

    @cached_property
    def warm_up(self) -> int:
        """Return how many initial rows belong to the warmup of the learning rate, during which it still rises."""
        rates = self.column("actor_lr")
        if len(rates) and rates.steps[0] == self.steps[0]:
            is_over = np.diff(rates.values) <= 1e-3 * rates.values[:-1]
            is_over &= rates.values[:-1] > 1e-3 * rates.values.max()  # a schedule may begin with zeros
            end = rates.steps[np.flatnonzero(is_over)[0] if is_over.any() else -1]
            return int(np.searchsorted(self.steps, end))
        plan = self.config.get("plan") or {}
        flags = self.config.get("flags") or {}
        try:
            updates = plan["scheduled_optimizer_steps"] * flags["lr_warmup_ratio"]
            last = math.ceil(updates / plan["optimizer_steps_per_step"])
        except (KeyError, TypeError, ZeroDivisionError):
            last = UNKNOWN_WARM_UP
            self.notes.append(f"actor_lr and the plan are missing, so the first {last} steps count as the warmup")
        return int(np.searchsorted(self.steps, last, side="right"))

    @cached_property
    def after_warm_up(self) -> "RunHistory":
        """Return the run without its warmup, for rules about the learning rate and about learning."""
        return self if self.is_late else replace(self, rows=self.rows[self.warm_up :], is_late=True)

    def column(self, name: str) -> Series:
        """Return the finite numbers of a column; empty without any."""
        if name not in self._columns:
            values = np.array([_number(row.get(name)) for row in self.rows], dtype=np.float64)
            finite = np.isfinite(values)
            self._columns[name] = Series(name, self.steps[finite], values[finite])
        return self._columns[name]

    def require_column(self, name: str, least: int) -> Series:
        """Return a column.

        Raises:
            NotJudged: if it has fewer than `least` values.
        """
        series = self.column(name)
        if len(series) >= least:
            return series
        if len(series) or len(self.rows) < least:
            have = len(series) or len(self.rows)
            raise NotJudged(f"only {have} steps{' after the warmup' if self.is_late else ''}; {least} are needed")
        raise NotJudged(f"{name} is missing in metrics.jsonl")

    def align_columns(self, *names: str, least: int) -> list[Series]:
        """Return columns at the steps that all of them have.

        Raises:
            NotJudged: if there are fewer than `least` such steps.
        """
        columns = [self.require_column(name, least) for name in names]
        shared = columns[0].steps
        for column in columns[1:]:
            shared = np.intersect1d(shared, column.steps, assume_unique=True)
        if len(shared) < least:
            raise NotJudged(f"only {len(shared)} steps have all of {', '.join(names)}; {least} are needed")
        return [
            Series(column.name, shared, column.values[np.isin(column.steps, shared, assume_unique=True)])
            for column in columns
        ]

    @cached_property
    def held_out(self) -> Series:
        """Return the exact match or the score of the evaluations, including those before and during the warmup."""
        return Series(
            HELD_OUT_SCORE if self.measure == SCORE else EXACT_MATCH,
            np.array([row["step"] for row in self.evals], dtype=np.int64),
            np.array([get_value(row) for row in self.evals], dtype=np.float64),
        )

    @property
    def measure(self) -> str:
        """Return what the evaluations measure (:mod:`grpo.run.measure`); exact match without any."""
        return read_measure(self.evals[-1]) if self.evals else EXACT_MATCH

    @property
    def held_out_name(self) -> str:
        """Return what people call the number of the evaluations."""
        return f"held-out {get_name(self.evals[-1]) if self.evals else 'evaluations'}"

    @property
    def training_name(self) -> str:
        """Return the column that is to the training rollouts what :attr:`held_out` is to the evaluations."""
        is_scored = self.measure == SCORE or not len(self.column("correct"))
        return SCORE if is_scored and len(self.column(SCORE)) else "correct"

    @cached_property
    def scale(self) -> tuple[float, float]:
        """Return the ends of the scale of both: 0 and 1, or further out if a score is."""
        ends = [self.held_out.values, self.column(self.training_name).values]
        ends += [_numbers(row.get(end) for row in self.evals) for end in ("ci_low", "ci_high")]
        known = np.concatenate([[0.0, 1.0], *ends])
        return float(known.min()), float(known.max())

    @property
    def width(self) -> float:
        """Return the width of the scale."""
        return self.scale[1] - self.scale[0]

    def is_mastered(self, level: float) -> bool:
        """Say whether a level of :attr:`training_name` leaves little to gain; a score above 1 has no known top."""
        return self.scale[1] <= 1 and level > self.scale[0] + MASTERED * self.width

    @cached_property
    def held_out_error(self) -> float:
        """Return the standard error of one evaluation; 0 if unknown.

        That of an exact match is due to sampling alone, on the same problems. That of a score is from its interval.
        """
        errors = []
        for row in self.evals:
            rate, samples = get_value(row), _number(row.get("samples"))
            if samples > 0 and self.measure == EXACT_MATCH:
                errors.append(math.sqrt(max(rate * (1 - rate), 1 / (4 * samples)) / samples))
            elif math.isfinite(width := _number(row.get("ci_high")) - _number(row.get("ci_low"))):
                errors.append(width / 4)  # 95% is two standard errors on each side
        return float(np.median(errors)) if errors else 0.0

    @cached_property
    def checkpoints(self) -> list[int]:
        """Return the steps of the checkpoints, ascending; [] without a folder."""
        return saved_steps(RunFiles(self.folder).find_folder("ckpt_path", self.config)) if self.folder else []

    @property
    def has_judge(self) -> bool:
        """Say whether a judge is used, according to config.json. Without config.json the columns decide."""
        judge = self.config.get("judge") or {}
        return not self.config.get("judge_off") and judge.get("JUDGE", "1") != "0"

    def setting(self, name: str) -> Any:
        """Return the value of a variable of train_grpo.sh or of a flag ("--dual_clip"); None if unknown."""
        flags, judge, environment = (self.config.get(part) or {} for part in ("flags", "judge", "environment"))
        if name.startswith("--"):
            return flags.get(name[2:])
        for variables in (judge, environment):
            if isinstance(variables, Mapping) and name in variables:
                return variables[name]
        return flags.get(SETTINGS[name].flag) if name in SETTINGS else None

    def setting_number(self, name: str) -> float | None:
        """Return the same if it is a number, else None."""
        return parse_number(self.setting(name))


def parse_number(value: Any) -> float | None:
    """Return a setting as a number, or None. config.json has the judge's numbers as strings."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _number(value: object) -> float:
    """Return a value of a line as a number; NaN for null, text and booleans."""
    number = parse_number(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    return math.nan if number is None else number


def _numbers(values: Iterable[object]) -> np.ndarray:
    return np.array([number for value in values if math.isfinite(number := _number(value))], dtype=np.float64)


def build_history(
    rows: Iterable[Mapping[str, Any]], evals: Iterable[Mapping[str, Any]] = (), config: Mapping[str, Any] | None = None
) -> RunHistory:
    """Return the history of these lines, each with a step. If two lines share a step, the later counts."""
    notes: list[str] = []
    config = config or {}
    columns, results = (_deduplicate_steps(*part, notes) for part in ((rows, "metrics.jsonl"), (evals, "eval.jsonl")))
    graded = [row for row in results if math.isfinite(_number(get_value(row)))]
    alike = keep_last_measure(graded)
    if len(alike) < len(graded):
        notes.append(f"eval.jsonl: {len(graded) - len(alike)} evaluations measured something else and are left out")
    whole = [row for row in alike if is_whole(row)]
    if len(whole) < len(alike):
        notes.append(f"eval.jsonl: {len(alike) - len(whole)} evaluations graded only some problems and are left out")
    return RunHistory(columns, whole, config, notes, folder=_folder(config))


def _folder(config: Mapping[str, Any]) -> Path | None:
    """Return the run directory that config.json names, if it is there."""
    recorded = (config.get("flags") or {}).get("run_dir")
    return Path(recorded) if isinstance(recorded, str) and Path(recorded).is_dir() else None


def _deduplicate_steps(rows: Iterable[Mapping[str, Any]], file: str, notes: list[str]) -> list[Mapping[str, Any]]:
    lines = list(rows)
    unique = sort_by_step(lines)
    if len(unique) < len(lines):
        notes.append(f"{file}: {len(lines) - len(unique)} lines repeat a step; the last one counts")
    return unique


def read_history(run: Run) -> RunHistory:
    """Return the history of a run as far as it has been read."""
    history = build_history(run.progress.metrics.rows, run.progress.evals.rows, run.config)
    history.folder = run.folder  # it may have moved
    broken = [(file.path.name, file.broken) for file in run.progress.files if file.broken]
    history.notes[:0] = [f"{name}: {count} lines without a step are left out" for name, count in broken]
    if not run.config:
        history.notes.append("config.json is missing, so settings are unknown")
    return history


def read(run_dir: Path) -> RunHistory:
    """Read a run directory to be diagnosed; the run may be in progress.

    Raises:
        UserError: the folder holds no run, nothing was logged yet, or config.json is invalid.
    """
    run = Run(run_dir)
    if run.config_fault:
        raise UserError(run.config_fault, "repair it, or move it away to diagnose without it")
    if not run.metrics:
        if run.state == RUNNING:
            raise UserError(f"{run.progress.metrics.path} has no complete step yet", "wait for the first one")
        raise UserError("the run ended before its first step", f"read the end of {run.files.logs / 'driver.log'}")
    return read_history(run)
