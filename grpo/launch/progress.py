"""Turns metrics.jsonl and eval.jsonl into lines for the user, while a run goes on and at its end."""

import json
import logging
import time
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

# Key in metrics.jsonl, label on the screen, format.
STEP_COLUMNS = (
    ("reward", "reward", ".3f"),
    ("correct", "correct", ".3f"),
    ("judge_quality", "quality", ".3f"),
    ("judge_failed", "unjudged", ".0%"),
    ("response_length", "length", ".0f"),
    ("grad_norm", "grad", ".3g"),
    ("ppo_kl", "kl", ".2g"),
)


class JsonLines:
    """Reads a growing JSON-lines file from where it stopped the last time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self._offset = 0

    def new_rows(self) -> list[dict[str, Any]]:
        """Return the complete lines since the last call; a line still being written waits, a broken one is left out."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        rows = []
        for line in filter(bytes.strip, complete.splitlines()):
            try:
                rows.append(json.loads(line))
            except ValueError:
                logger.warning("%s holds a broken line, left by a full disk or a kill", self.path)
        self.rows += rows
        return rows


class Progress:
    """The steps and evals of one run."""

    def __init__(self, metrics_dir: Path, steps: int | None) -> None:
        self.steps = steps
        self.metrics = JsonLines(metrics_dir / "metrics.jsonl")
        self.evals = JsonLines(metrics_dir / "eval.jsonl")
        self.started = time.monotonic()

    def skip(self) -> None:
        """Take what is there already, of the run that is continued, as shown."""
        self.metrics.new_rows()
        self.evals.new_rows()

    def poll(self) -> list[str]:
        """Return a line for every step and eval since the last call, in the order of their steps."""
        lines = [(row["step"], 0, step_line(row, self.steps)) for row in self.metrics.new_rows()]
        lines += [(row["step"], 1, eval_line(row)) for row in self.evals.new_rows()]
        return [line for _, _, line in sorted(lines)]

    def summary(self, run_dir: Path, save_path: Path, ckpt_path: Path) -> list[str]:
        """Return the last lines that the user sees of a run."""
        minutes = (time.monotonic() - self.started) / 60
        steps = self.metrics.rows[-1]["step"] if self.metrics.rows else 0
        lines = [f"{steps} steps in {minutes:.1f} minutes"]
        if self.evals.rows:
            first, last = self.evals.rows[0], self.evals.rows[-1]
            lines.append(f"exact match  {_interval(first)} at step {first['step']}")
            if last is not first:
                lines.append(f"          -> {_interval(last)} at step {last['step']}")
        adapter = find_adapter(save_path, ckpt_path)
        lines.append(f"adapter      {adapter or 'none was saved'}")
        lines.append(f"run          {run_dir}")
        lines.append(f"again        {run_dir / 'command.sh'}")
        return lines


def step_line(row: dict[str, Any], steps: int | None) -> str:
    """Return one global step as one line; metrics that the row lacks are left out."""
    parts = [f"step {row['step']}" + (f"/{steps}" if steps else "")]
    parts += [f"{label} {row[key]:{form}}" for key, label, form in STEP_COLUMNS if _is_number(row.get(key))]
    seconds = row.get("seconds") or {}
    if seconds:
        shown = {name: value for name, value in seconds.items() if name != "total" and value >= 0.05}
        phases = ", ".join(f"{name} {value:.1f}" for name, value in shown.items())
        parts.append(f"{seconds.get('total', sum(seconds.values())):.1f} s ({phases})")
    return "  ".join(parts)


def eval_line(row: dict[str, Any]) -> str:
    """Return one eval as one line."""
    return f"eval at step {row['step']}: exact match {_interval(row)}"


def _interval(row: dict[str, Any]) -> str:
    if not _is_number(row.get("exact_match")):
        return "not graded"
    text = f"{row['exact_match']:.3f}"
    if _is_number(row.get("ci_low")) and _is_number(row.get("ci_high")):
        text += f" [{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
    return text + (f" (n={row['n']})" if "n" in row else "")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def find_adapter(save_path: Path, ckpt_path: Path) -> Path | None:
    """Return the folder of the final adapter, else that of the newest checkpoint, else None."""
    if (save_path / "adapter_config.json").is_file():
        return save_path
    configs = sorted(ckpt_path.rglob("adapter_config.json"), key=lambda file: file.stat().st_mtime)
    return configs[-1].parent if configs else None
