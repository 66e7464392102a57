"""Continues a run after a crash, as `--resume` by hand does: a new launcher takes this one's place.

The history is in ends.jsonl: a line with ``restart`` is of an attempt that another one followed by itself.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.flags.parser import Asked
from grpo.launch import signals
from grpo.run.progress import describe_continuation
from grpo.run.run_files import RunFiles
from grpo.stack.problem import UserError

FIRST_WAIT, GROWTH = 10.0, 3.0  # seconds: 10, 30, 90
# What a second start cures: a name or port that another program or group of ranks took at the same moment.
_BY_CHANCE = re.compile(r"start again|[Aa]ddress already in use")
LAUNCHER = ("-P", "-m", "grpo.launch")
REFUSED = 2  # exit code


@dataclass(frozen=True)
class Verdict:
    """Whether another attempt follows: after how many seconds (None: not), and what to tell the user."""

    wait: float | None
    lines: list[str]


def decide(ends: Sequence[Mapping[str, Any]], limit: int, has_progressed: bool) -> Verdict:
    """Decide whether a run restarts after its last end.

    Args:
        ends: the lines of ends.jsonl. The last one is of this end and has ``cause``, ``step`` (the last completed one)
            and ``saved`` (the step of the newest checkpoint, or 0).
        limit: restarts without a new checkpoint.
        has_progressed: whether this attempt has logged a step or an evaluation.
    """
    if limit == 0:
        return Verdict(None, [])
    last, chain = ends[-1], _chain(ends)
    first = [f"first error, at step {chain[0]['step']}: {chain[0]['cause']}"] if chain else []
    if not has_progressed and not chain and not _BY_CHANCE.search(last["cause"]):
        return Verdict(None, ["not restarting: the run failed before its first step or evaluation"])
    if chain and (chain[-1]["step"], _kind(chain[-1])) == (last["step"], _kind(last)):
        return Verdict(None, [*first, f"not restarting: the same error occurred again after step {last['step']}"])
    used = sum(end["saved"] == last["saved"] for end in chain)
    if used >= limit:
        return Verdict(None, [*first, f"not restarting: {used} restarts without a new checkpoint (--restarts {limit})"])
    wait = FIRST_WAIT * GROWTH**used
    origin = f"step {last['saved']}" if last["saved"] else "the start"
    return Verdict(wait, [*first, f"restarting from {origin} in {wait:.0f} s ({used + 1} of {limit})"])


def _chain(ends: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the ends before the last one that were followed by a restart, without a resume by hand in between."""
    chain: list[Mapping[str, Any]] = []
    for end in reversed(ends[:-1]):
        if not end.get("restart"):
            break
        chain.insert(0, end)
    return chain


def _kind(end: Mapping[str, Any]) -> str:
    """Return the cause without process ids and other numbers."""
    return re.sub(r"\d+", "", end["cause"])


def find_restart(words: Sequence[str]) -> Asked:
    """Return what :func:`exec_launcher` hands on, for a signal that comes before the flags are read."""
    return Asked({}, resume=words[1], held=int(words[3])) if words[2:3] == ["--held"] else Asked({})


def exec_launcher(folder: Path, held: int) -> None:
    """Replace this process by a launcher that resumes the run in `folder`. Does not return.

    Args:
        held: the file descriptor of the run's lock; the new launcher keeps it.
    """
    signals.hold_back()  # an interpreter that starts would die of one without a word
    os.set_inheritable(held, True)
    os.execv(sys.executable, [sys.executable, *LAUNCHER, "--resume", str(folder), "--held", str(held)])


def end_restarts(folder: Path, code: int, **more: str) -> int:
    """Record that a restart was not made, and say how the run continues; return the exit code."""
    files = RunFiles(folder)
    note_end(files, code, **more)
    try:
        config = files.read_config()
    except UserError:  # the refusal has named it
        config = {}
    print(f"not finished {describe_continuation(folder, files.find_folder('ckpt_path', config))}", flush=True)
    return code


def note_end(files: RunFiles, code: int, **more: Any) -> bool:
    """Record how an attempt ended; return whether the disk had room for it."""
    try:
        files.note_end(code, **more)
    except OSError as error:  # it does not change how the run ended
        print(f"{files.ends} was not written: {error}", file=sys.stderr)
        return False
    return True
