"""Refusals: why nothing is started. That of a restart is recorded in ends.jsonl, and says how the run continues."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo.flags.parser import Asked
from grpo.run.progress import describe_continuation
from grpo.run.run_files import RunFiles
from grpo.stack.counted import format_count
from grpo.stack.problem import Problem, UserError

REFUSED = 2


def refuse(asked: Asked, error: UserError) -> int:
    """Print why nothing is started; return the exit code."""
    print(f"refused: {error}", file=sys.stderr)
    return _refuse(asked, error.problem)


def refuse_all(asked: Asked, problems: Sequence[Problem]) -> int:
    """Print all problems; return the exit code."""
    print(f"refused, {format_count(len(problems), 'problem')}:", file=sys.stderr)
    print("\n".join(f"  {number}. {problem}" for number, problem in enumerate(problems, 1)), file=sys.stderr)
    return _refuse(asked, problems[0])


def _refuse(asked: Asked, first: Problem) -> int:
    """Return the exit code; a restart also leaves a record, and says how the run continues."""
    if asked.held is None or asked.resume is None:
        return REFUSED
    return end_restarts(Path(asked.resume), REFUSED, cause=first.what, remedy=first.remedy)


def end_restarts(folder: Path, code: int, **more: str) -> int:
    """Record that a restart was not made, and say how the run continues; return the exit code."""
    files = RunFiles(folder)
    note(files, code, **more)
    try:
        config = files.read_config()
    except UserError:  # the refusal has named it
        config = {}
    print(f"not finished {describe_continuation(folder, files.find_folder('ckpt_path', config))}", flush=True)
    return code


def note(files: RunFiles, code: int, **more: Any) -> bool:
    """Record how a part of the run ended; return whether the disk had room for it."""
    try:
        files.note_end(code, **more)
    except OSError as error:  # it does not change how the run ended
        print(f"{files.ends} was not written: {error}", file=sys.stderr)
        return False
    return True
