"""Turns metrics.jsonl and eval.jsonl into lines for the user, during a run and at its end."""

import os
import shlex
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from grpo.run.eval_metric import get_name, get_value, is_whole, keep_last_eval_metric
from grpo.run.run_files import LostWrites, RunFiles, has_step, saved_steps, step_name
from grpo.stack.checkout import CHECKOUT
from grpo.stack.command import format_count
from grpo.stack.json_files import complete_rows, open_file, read_rest
from grpo.stack.problem import UserError

Row = TypeVar("Row", bound=Mapping[str, Any])

# Key in metrics.jsonl, label on the screen, format.
STEP_COLUMNS = (
    ("reward", "reward", ".3f"),
    ("correct", "correct", ".3f"),
    ("judge_quality", "quality", ".3f"),
    ("judge_failed", "unjudged", ".0%"),
    ("reward_missing", "no reward", ".0%"),
    ("response_length", "length", ".0f"),
    ("turns", "turns", ".1f"),
    ("tool_calls", "tool calls", ".1f"),
    ("grad_norm", "grad", ".3g"),
    ("ppo_kl", "ppo_kl", ".2g"),
)


class PolicyMismatch(UserError):  # here, since the launcher names it without importing PyTorch
    """Engines and trainer are not the same policy, so the run must not train on its rollouts."""


LARGEST = sys.float_info.max  # JSON has larger whole numbers, which no calculation takes
ONLY_ABOVE_ZERO = {"reward_missing"}


class JsonLines:
    """Reads a growing JSON-lines file of steps, which an evaluation or a resume may also replace.

    Attributes:
        rows: the lines that the file has now, all with a `step`.
        broken: the number of lines left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self.broken = 0
        self.before: frozenset[tuple[Any, Any]] = frozenset()
        self._read: tuple[int, ...] = ()  # what tells the file as it was

    def skip(self) -> None:
        """Read the lines of earlier attempts."""
        self.new_rows()
        self.before = frozenset(map(_key, self.rows))

    def read_this_attempt(self) -> list[dict[str, Any]]:
        """Return the lines since :meth:`skip`."""
        return [row for row in self.rows if _key(row) not in self.before]

    def new_rows(self) -> list[dict[str, Any]]:
        """Return the complete lines that the file did not have at the last call, by their step and time."""
        try:
            with open_file(self.path) as file:
                stat = os.fstat(file.fileno())
                if self._read == (state := (stat.st_ino, stat.st_size, stat.st_mtime_ns)):
                    return []
                data = read_rest(file)
        except FileNotFoundError:
            return []
        known, self._read = set(map(_key, self.rows)), state
        objects, broken = complete_rows(data, self.path)
        self.rows = [row for row in objects if has_step(row)]
        self.broken = broken + len(objects) - len(self.rows)
        return [row for row in self.rows if _key(row) not in known]


def _key(row: Mapping[str, Any]) -> tuple[Any, Any]:
    return row["step"], row.get("time")


def sort_by_step(rows: Iterable[Row]) -> list[Row]:
    """Return lines in the order of their steps, one per step. If a step was repeated, the later line counts."""
    return [row for _, row in sorted({row["step"]: row for row in rows}.items(), key=lambda pair: pair[0])]


class Progress:
    """The steps, evaluations and comparisons of one run, as its files had them at the last :meth:`poll`."""

    def __init__(self, files: RunFiles, steps: int | None) -> None:
        self.steps = steps
        self.metrics, self.evals, self.parity = map(JsonLines, (files.metrics, files.evals, files.parity))
        self.files = (self.metrics, self.evals)
        self.lost = LostWrites(files.lost_writes)
        self.started = time.monotonic()
        self._before = 0  # the last step of earlier attempts
        self._waits: str | None = None  # what the last comparison waits for

    def skip(self) -> None:
        """Mark what a resumed run has already written as shown."""
        for file in (self.metrics, self.evals, self.parity):
            file.skip()
        self._before = self.step

    def has_moved(self) -> bool:
        """Return whether a step or an evaluation was logged since :meth:`skip`."""
        return bool(self.metrics.read_this_attempt() or self.evals.read_this_attempt())

    def poll(self) -> list[str]:
        """Return a line for every step and eval since the last call, and a table for every comparison, in order.

        Writes that were lost since then come last.
        """
        lines = [(row["step"], -1, "\n".join(parity_lines(row))) for row in self._new_comparisons()]
        lines += [(row["step"], 0, step_line(row, self.steps)) for row in self.metrics.new_rows()]
        lines += [(row["step"], 1, eval_line(row)) for row in self.evals.new_rows()]
        lost = [f"! lost       {self.lost.describe()}; the run continues"] if self.lost.refresh() else []
        return [line for _, _, line in sorted(lines)] + lost

    def _new_comparisons(self) -> list[dict[str, Any]]:
        """Return the comparisons since the last call, but not those that wait for the same engines as one before."""
        news = []
        for row in self.parity.new_rows():
            waits = row.get("waits") if not row.get("problems") else ""
            if not waits or waits != self._waits:
                news.append(row)
            self._waits = waits
        return news

    def summary(self, run_dir: Path, save_path: Path, ckpt_path: Path) -> list[str]:
        """Return the last lines that a run shows the user."""
        step = max([self.step, *saved_steps(ckpt_path)[-1:]])  # the last lines may be lost
        line = f"{format_count(step - self._before, 'step')} in {self.seconds() / 60:.1f} minutes"
        more = f", after {self._before} of earlier attempts" if self._before else ""
        unjudged = [f"parity       {self._waits.partition(':')[0]}; what was compared agrees"] if self._waits else []
        return [line + more, *unjudged, *self.results(run_dir, save_path, ckpt_path)]

    def seconds(self) -> float:
        """Return the seconds of this attempt so far."""
        return time.monotonic() - self.started

    @property
    def step(self) -> int:
        """Return the last completed step; 0 before the first."""
        return self.metrics.rows[-1]["step"] if self.metrics.rows else 0

    def describe_no_learning(self) -> list[str]:
        """Return a warning if no group's rewards ever differed (GRPO had no gradient), or no rollout was right."""
        shares, correct = (
            [row[name] for row in self.metrics.rows if is_number(row.get(name))]
            for name in ("zero_spread_groups", "correct")
        )
        if shares and min(shares) == 1:
            what = "nothing was learned: in every group, all rollouts got the same reward"
        elif correct and max(correct) == 0:
            what = "no right answer was learned: no rollout was right in any step"
        else:
            return []
        why = "the problems may be too hard or too easy for this model, or unlike those it knows; read samples/"
        return [what, f"             {why}"]

    def results(self, run_dir: Path, save_path: Path, ckpt_path: Path) -> list[str]:
        """Return the results of a run: what was measured, and the paths of adapter and run."""
        lines = self.describe_no_learning()
        if self.lost.count:
            lines.append(f"lost         {self.lost.describe()}")
        if self.evals.rows:
            measured = keep_last_eval_metric(self.evals.rows)
            ends = [measured[0], measured[-1]]
            lines += _change(get_name(ends[0]), ends)
            lines += _change("greedy", [row["greedy"] | {"step": row["step"]} for row in ends if "greedy" in row])
        adapter = find_adapter(save_path, ckpt_path)
        lines.append(f"adapter      {adapter or 'not saved'}")
        lines.append(f"run          {run_dir}")
        return lines


def _change(name: str, rows: list[dict[str, Any]]) -> list[str]:
    """Return what the first and the last eval measured; one line if they are the same or one lacks it."""
    steps, heads = sort_by_step(rows), (f"{name:<11}  ", "          -> ")
    lines = [f"{head}{interval(row)} at step {row['step']}" for head, row in zip(heads, steps, strict=False)]
    if len(steps) > 1 and not all(map(is_whole, steps)):
        why = "not every problem was graded; to compare those that were, run python -m eval.compare on samples/"
        lines.append(f"             not comparable: {why}")
    return lines


def step_line(row: dict[str, Any], steps: int | None) -> str:
    """Return one global step as one line; metrics that the row lacks are left out."""
    numbers = {name: value for name, value in row.items() if is_number(value)}
    parts = [f"step {row['step']}" + (f"/{steps}" if steps else "")]
    parts += [
        f"{label} {numbers[key] + 0.0:{form}}"  # -0.0 is shown as 0.0
        for key, label, form in STEP_COLUMNS
        if key in numbers and (numbers[key] or key not in ONLY_ABOVE_ZERO)
    ]
    parts[2:2] = [f"{key} {value:.3f}" for key, value in numbers.items() if key.startswith("reward.")]
    seconds = row.get("seconds")
    seconds = {k: v for k, v in seconds.items() if is_number(v)} if isinstance(seconds, dict) else {}
    if seconds:
        phases = [f"{name} {value:.1f}" for name, value in seconds.items() if name != "total" and value >= 0.05]
        parts.append(f"{seconds.get('total', sum(seconds.values())):.1f} s ({', '.join(phases)})")
    return "  ".join(parts)


def parity_lines(row: dict[str, Any]) -> list[str]:
    """Return one comparison of engines and trainer as a verdict and a table."""
    adapter = "with the adapter" if row["has_adapter"] else "the adapter is still zero"
    steps = f", rollouts since step {row['since']}" if row["since"] < row["step"] else ""
    waits, head = row["waits"], f"step {row['step']}: engines and actor"
    if not row["problems"] and (waits or not row["has_adapter"]):  # a zero adapter says little
        return [f"{head} agree so far ({adapter}{steps}); {waits}" if waits else f"{head} agree ({adapter}{steps})"]
    legend = (
        "difference between the log-probs of engine and actor for the same tokens: mean in nat ±standard error, by "
        f"position in the sequence; scale: 1 if they agree; the run stops if a mean is significantly above "
        f"{row['limit']:g}"
    )
    notes = [waits, *(f"{problem['what']}; {problem['remedy']}" for problem in row["problems"]), row["routing"]]
    lines = [legend, *row.get("table", ()), *(f"  {note}" for note in notes if note)]
    verdict = "differ" if row["problems"] else "agree"
    return [f"{head} {verdict} ({adapter}{steps})", *(f"  {line}" for line in lines)]


def eval_line(row: dict[str, Any]) -> str:
    """Return one eval as one line."""
    passed = row.get("pass_at_k")
    several = [(k, part) for k, part in passed.items() if k != "1"] if isinstance(passed, dict) else []
    parts = [(k, part.get("value")) for k, part in several if isinstance(part, dict)]
    shown = [f", pass@{k} {value:.3f}" for k, value in parts if is_number(value)]
    if isinstance(greedy := row.get("greedy"), dict) and is_number(value := get_value(greedy)):
        shown.append(f", greedy {value:.3f}")
    return f"eval at step {row['step']}: {get_name(row)} {interval(row)}{''.join(shown)}"


def interval(row: dict[str, Any]) -> str:
    """Return what an eval measured, with its interval and the number of problems; of how many, if not all."""
    value = get_value(row)
    if not is_number(value):
        return "not graded" + (f" (graded 0 of {row['problems']})" if row.get("problems") else "")
    text = f"{value:.3f}"
    if is_number(row.get("ci_low")) and is_number(row.get("ci_high")):
        text += f" [{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
    if not is_whole(row):
        return text + f" (graded {row['n']} of {row['problems']})"
    return text + (f" (n={row['n']})" if "n" in row else "")


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value of a line is a finite number: not null, a string, or a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def describe_continuation(run_dir: Path, ckpt_path: Path) -> str:
    """Return how to continue an unfinished run: the command, and where it starts."""
    steps = saved_steps(ckpt_path)
    then = f"continues after step {steps[-1]}" if steps else "starts at step 0: the run saved no checkpoint"
    return f"{shlex.join([_find_script(run_dir), '--resume', str(run_dir)])} {then}"


def _find_script(run_dir: Path) -> str:
    """Return the script that started a run: lines of another one do not count at a resume."""
    try:
        words = RunFiles(run_dir).read_config().get("script") or []
        script = Path(words[words.index("--script") + 1])
    except (UserError, ValueError, IndexError, AttributeError):
        script = CHECKOUT / "train_grpo.sh"
    return f"./{script.name}" if script.parent == CHECKOUT else str(script)


def find_adapter(save_path: Path, ckpt_path: Path) -> Path | None:
    """Return the folder of the newest adapter: the final one or the last checkpoint's; None if no adapter was saved.

    The final one may be older, if a run was resumed after its end and did not reach another end.
    """
    folders = [save_path, *(ckpt_path / step_name(step) / "adapter" for step in saved_steps(ckpt_path)[-1:])]
    configs = [file for folder in folders if (file := folder / "adapter_config.json").is_file()]
    newest = max(configs, key=lambda file: file.stat().st_mtime, default=None)
    return newest.parent if newest else None
