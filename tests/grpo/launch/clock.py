"""A clock of the machine that jumps, for every process of a run."""

import os
import time
from pathlib import Path

_real = time.time


def follow() -> None:
    """Let this process follow the clock of the run's tests."""
    time.time = _read_time


def jump(seconds: float) -> None:
    """Let the clock jump."""
    _get_file().write_text(str(seconds))


def _read_time() -> float:
    file = _get_file()
    return _real() + (float(file.read_text()) if file.exists() else 0.0)


def _get_file() -> Path:
    return Path(os.environ["FAULTY_FOLDER"], "clock")
