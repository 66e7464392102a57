"""A run as the rules see it, and the comparisons that they make between its numbers."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from grpo.run.eval_metric import SCORE, get_value, is_whole, keep_last_eval_metric, read_eval_metric
from grpo.run.progress import is_number, sort_by_step
from grpo.run.run_files import has_step

RECENT = 10  # steps that give the present level
MOST = 1e12  # of any metric: a larger number is an error


class Change(NamedTuple):
    """Two levels of a metric: `step` is the first of the later one, `z` their difference in standard errors."""

    name: str
    step: int
    before: float
    after: float
    z: float = 0.0

    @property
    def gain(self) -> float:
        return self.after - self.before

    def __str__(self) -> str:
        return f"{self.name} from {self.before:.3g} to {self.after:.3g} ({abs(self.z):.1f} standard errors)"


@dataclass(frozen=True)
class Series:
    """The finite numbers of one metric: steps [N] int64, ascending, and values [N] float64."""

    name: str
    steps: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    def between(self, first: float, last: float = math.inf) -> "Series":
        """Return the part from one step to another, both inclusive."""
        kept = (self.steps >= first) & (self.steps <= last)
        return Series(self.name, self.steps[kept], self.values[kept])

    @cached_property
    def scatter(self) -> float:
        """Return the standard deviation around a level that may drift; the largest jumps do not count."""
        jumps = np.sort(np.diff(self.values) ** 2)
        return math.sqrt(jumps[: math.ceil(0.95 * len(jumps))].mean() / 2) if len(jumps) else 0.0

    def compare(self, step: float, window: int = 30, noise: float = 1e-6) -> Change:
        """Compare the steps before a step with those from it on; steps scatter by `noise` at least."""
        at = int(np.searchsorted(self.steps, step))
        before, after = self.values[max(at - window, 0) : at], self.values[at : at + window]
        if not len(before) or not len(after):
            return Change(self.name, int(step), 0.0, 0.0)
        error = max(self.scatter, noise) * math.sqrt(1 / len(before) + 1 / len(after))
        first, last = float(before.mean()), float(after.mean())
        return Change(self.name, int(step), first, last, (last - first) / error)

    def whole(self, noise: float = 1e-6) -> Change:
        """Compare the first quarter with the last, 20 values each at most."""
        part = min(max(len(self) // 4, 2), 20)
        if len(self) <= part:
            return self.compare(0)
        values, steps = (np.concatenate([one[:part], one[-part:]]) for one in (self.values, self.steps))
        return Series(self.name, steps, values).compare(steps[part], noise=max(self.scatter, noise))

    def largest_fall(self, samples: float, windows: Sequence[int], least: int) -> Change:
        """Return the most certain fall of a share of right rollouts that lasts until now; one of 0 without any.

        Args:
            samples: independent samples in a value, at least: they tell the scatter of a short series.
            windows: how many values before a fall give the former level. All from it on, `least` or more, the later.
        """
        values, falls = self.values, [self.compare(0)]
        for window, split in ((window, split) for window in windows for split in range(2, len(values) - least + 1)):
            before, after = values[max(split - window, 0) : split], values[split:]
            high, low = float(before.mean()), float(after.mean())
            if low < high and after[-RECENT:].mean() <= (high + low) / 2:
                level = (high * len(before) + low * len(after)) / (len(before) + len(after))
                expected = 8 * max(level * (1 - level), 0.5 / samples) / samples  # counts like eight steps
                seen = ((np.diff(before) ** 2).sum() + (np.diff(after) ** 2).sum()) / 2
                variance = (expected + seen) / (6 + len(before) + len(after))
                error = math.sqrt(variance * (1 / len(before) + 1 / len(after)))
                falls.append(Change(self.name, int(self.steps[split]), high, low, (low - high) / error))
        return min(falls, key=lambda fall: fall.z)


def find_spell(flags: np.ndarray, steps: int, ever: bool = False) -> int | None:
    """Return where the flags begin that last until now, or the first that `ever` did; one missing ends them not."""
    at = np.flatnonzero(flags)
    spells = [one for one in np.split(at, np.flatnonzero(np.diff(at) > 1 + (steps > 3)) + 1) if len(one) >= steps]
    if not spells or (not ever and spells[-1][-1] != len(flags) - 1):
        return None
    return int(spells[0 if ever else -1][0])


class Record:
    """Lines of metrics.jsonl and eval.jsonl, and config.json's content; anything in them may be missing or odd.

    Attributes:
        metric: what training measures: "correct", or "score" of a reward of the user's own.
        bottom, width: of the scale of the run's scores; 0 and 1 for correctness.
    """

    def __init__(self, rows: Iterable[Any], evals: Iterable[Any] = (), config: Any = None) -> None:
        self._columns: dict[str, Series] = {}
        self.rows, measured = _sort(rows), [row for row in _sort(evals) if is_number(get_value(row)) and is_whole(row)]
        self.evals = keep_last_eval_metric(measured) if measured else []
        self.config: Mapping[str, Any] = config if isinstance(config, Mapping) else {}
        self.settings: dict[str, Any] = {}
        for part in map(self.config.get, ("flags", "environment", "judge")):
            named = part.items() if isinstance(part, Mapping) else ()
            self.settings |= {str(name).lower(): value for name, value in named}
        is_scored = read_eval_metric(self.evals[-1]) == SCORE if self.evals else not len(self.column("correct"))
        self.metric = SCORE if is_scored and len(self.column(SCORE)) else "correct"
        ends = [row[end] for row in self.evals for end in ("ci_low", "ci_high") if is_number(row.get(end))]
        ends = [end for end in (0.0, 1.0, *self.column(self.metric).values, *ends) if abs(end) < MOST]
        self.bottom, self.width = min(ends), max(ends) - min(ends)

    def until(self, step: float) -> "Record":
        """Return the run as it was at a step."""
        rows, evals = ([row for row in part if row["step"] <= step] for part in (self.rows, self.evals))
        return Record(rows, evals, self.config)

    def column(self, name: str) -> Series:
        """Return a metric; "a/b" and "a-b" of two; "a@first", "a@peak", "a@rise": means over 5 steps to earlier."""
        if name not in self._columns:
            self._columns[name] = self._read_column(name)
        return self._columns[name]

    def _read_column(self, name: str) -> Series:
        if "@" in name:
            series = self.column(name.split("@")[0])
            means = np.array([series.values[max(at - 4, 0) : at + 1].mean() for at in range(len(series))])
            base = np.maximum.accumulate(means) if name.endswith("peak") else means[4:5] if len(means) > 4 else means
            return Series(name, series.steps, means - base if name.endswith("rise") else means / np.maximum(base, 1e-9))
        first, sign, second = name.partition("/") if "/" in name else name.partition("-")
        found = [(row["step"], row.get(first), row.get(second) if sign else 1.0) for row in self.rows]
        kept = [one for one in found if all(is_number(value) and abs(value) < MOST for value in one)]
        steps, values, others = np.array(kept, float).reshape(-1, 3).T
        steps = steps.astype(np.int64)
        return Series(name, steps, values - others if sign == "-" else values / np.maximum(others, 1e-9))

    @cached_property
    def training(self) -> Series:
        """Return correctness, or the score, of the training rollouts, as a share of the scale of the run's scores."""
        series = self.column(self.metric)
        return Series(self.metric, series.steps, (series.values - self.bottom) / self.width)

    @cached_property
    def held_out(self) -> Series:
        """Return what the evaluations measured, likewise."""
        found = [(row["step"], get_value(row)) for row in self.evals if abs(get_value(row)) < MOST]
        steps, values = np.array(found, float).reshape(-1, 2).T
        return Series(f"held-out {self.metric}", steps.astype(np.int64), (values - self.bottom) / self.width)

    @cached_property
    def eval_error(self) -> float:
        """Return the standard error of an evaluation, by its 95% interval."""
        ends = [(row.get("ci_low"), row.get("ci_high")) for row in self.evals]
        errors = [float(high - low) / 4 / self.width for low, high in ends if is_number(low) and is_number(high)]
        return min(max(float(np.median(errors or [0.06])), 0.01), 0.5)

    @property
    def has_room(self) -> bool:
        """Say whether there is something left to learn; a score above 1 has no known top."""
        return self.width > 1 or not len(self.training) or self.training.values[-2 * RECENT :].mean() < 0.9

    @cached_property
    def peak(self) -> int:
        """Return the step at which the learning rate has reached its peak; 5 if it is unknown."""
        rate = self.column("actor_lr")
        return int(rate.steps[np.argmax(rate.values >= 0.999 * rate.values.max())]) if len(rate) else 5

    @property
    def has_judge(self) -> bool:
        return not self.config.get("judge_off") and self.setting("--judge") != 0

    def setting(self, name: str) -> Any:
        """Return the value of a flag ("--dual_clip"), as a number if it is one; None if unknown."""
        value: Any = self.settings.get(name.removeprefix("--"))
        try:
            return number if value is not None and abs(number := float(value)) < MOST else None
        except (TypeError, ValueError, OverflowError):
            return value

    def number(self, name: str, default: float = 0.0) -> float:
        """Return the same if it is a number."""
        return value if isinstance(value := self.setting(name), float) else default


def _sort(lines: Iterable[Any]) -> list[Mapping[str, Any]]:
    return sort_by_step(row for row in lines if isinstance(row, Mapping) and has_step(row))
