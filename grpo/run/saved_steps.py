"""Which checkpoints a run has, and how each scored. Imports nothing heavy, because the launcher uses it too."""

import re
from pathlib import Path

from grpo.run.eval_metric import get_value, keep_last_eval_metric
from grpo.run.run_files import read_steps

STEP_DIRECTORY = re.compile(r"step_(0|[1-9][0-9]*)")


def step_name(step: int | str) -> str:
    """Return the name of a step's checkpoint; of "*", a pattern for all of them."""
    return f"step_{step}"


def parse_step(checkpoint: Path) -> int:
    """Return the step of a checkpoint by its name.

    Raises:
        ValueError: if it is not the name of one.
    """
    return int(checkpoint.name.removeprefix(step_name("")))


def saved_steps(checkpoints: str | Path) -> list[int]:
    """Return the steps of the complete checkpoints, in ascending order.

    A checkpoint gets its name when it is complete, so every ``step_N`` is complete.
    """
    folder = Path(checkpoints)
    if not folder.is_dir():
        return []
    entries = ((STEP_DIRECTORY.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted(int(match[1]) for match, path in entries if match and (path / "adapter").is_dir())


def held_out(eval_file: Path) -> dict[int, float]:
    """Return what was measured on the held-out problems by step, from eval.jsonl; {} if the file is missing.

    An evaluation that graded fewer problems than others measured other problems, and is left out. So are those from
    before a resume with another reward.
    """
    rows = keep_last_eval_metric([row for row in read_steps(eval_file) if get_value(row) is not None])
    most = max((row.get("n") or 0 for row in rows), default=0)
    return {row["step"]: get_value(row) for row in rows if (row.get("n") or 0) == most}
