"""Saves a checkpoint at the end of a run and when the launcher requests one, even within a step if the ranks are idle.

A request is a file in the run directory until it is done.
While the engines sample or evaluate, adapter, optimizer and random states are those of the last completed step. So a
checkpoint of that step is the one that the end of the step would have saved.
"""

import contextlib
import copy
import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from grpo.run.run_files import RunFiles
from grpo.stack.problem import UserError
from grpo.stack.secrets import redact
from grpo.stack.upstream import Arguments

logger = logging.getLogger("openrlhf.grpo.on_request")

LOOK_SECONDS = 0.2
LONGEST = 300  # bytes of the reason for a failure


class SaveRequest:
    """A request for a checkpoint of the last completed step.

    Its file exists as long as the request is open, or holds the reason for a failure. Space for the reason is reserved
    at the start, since a full disk has none later.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def ask(self) -> None:
        """Open the request."""
        self._file.touch()
        with contextlib.suppress(OSError):  # a full disk: the checkpoint may be on another one
            self._file.write_text(" " * LONGEST, encoding="utf-8")

    def is_open(self) -> bool:
        """Return whether a request is open."""
        return self._file.exists() and not self.failure()

    def fail(self, why: str) -> None:
        """Record why the checkpoint could not be saved."""
        with self._file.open("r+b") as file:
            file.write(why.encode()[:LONGEST])

    def failure(self) -> str:
        """Return why the checkpoint could not be saved; "" if it may still be, or has been."""
        try:
            return self._file.read_text(encoding="utf-8", errors="ignore").strip()
        except FileNotFoundError:
            return ""

    def close(self) -> None:
        """Remove the request: the last completed step is saved, or nothing waits for it."""
        self._file.unlink(missing_ok=True)


class SaveOnRequest:
    """Saves the checkpoints of a run, and watches for a request in a thread of the controller.

    A state that is a function is called when a checkpoint needs it. With --pipeline, the batch of the next step may
    still wait for rewards, and a step that saves nothing does not.

    Args:
        args: ``save_steps`` is infinite if the run saves nothing.
        save: writes the checkpoint of the states that it gets, on every rank.
        step: the last completed step, which has been saved; 0 at the start of a run.
    """

    def __init__(self, args: Arguments, save: Callable[[dict[str, Any]], None], step: int) -> None:
        self._save_steps, self._write = args.save_steps, save
        self._request = SaveRequest(RunFiles(Path(args.run_dir)).save_request)
        self._ranks_idle = threading.Lock()
        self._states: dict[str, Any] | None = None
        self._step = self._saved = step
        threading.Thread(target=self._watch, name="save on request", daemon=True).start()

    def begin_step(self) -> None:
        """Keep requests waiting: the ranks are about to change. A step that fails never lets them in again."""
        self._ranks_idle.acquire()

    def end_step(self, step: int, states: dict[str, Any], phase: Callable[[str], AbstractContextManager[None]]) -> None:
        """Save the controller's states after a step if a checkpoint is due, and let requests in."""
        is_due = step % self._save_steps == 0
        complete = _complete(states) if is_due else states  # before the phase: it may wait for rewards
        with phase("save"):
            if is_due:
                self._write(complete)
                self._saved = step
        self._step, self._states = step, copy.deepcopy(states)  # a request comes after the loop has moved on
        self._ranks_idle.release()

    def save_last(self) -> None:
        """Save the last step of the run, unless it is a checkpoint already, or the run saves none."""
        if math.isfinite(self._save_steps):
            with self._ranks_idle:
                self._save()

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            if self._request.is_open():
                try:
                    with self._ranks_idle:
                        self._save()
                    self._request.close()
                except Exception as error:  # the launcher tells the user, and ends the run
                    logger.exception("step %d was not saved", self._step)
                    why = getattr(error, "cause", None) or error  # Ray's own text is a traceback
                    what = why.problem.what if isinstance(why, UserError) else f"{type(why).__name__}: {why}"
                    self._request.fail(redact(what))

    def _save(self) -> None:
        if self._saved == self._step or self._states is None:
            return
        logger.info("saving step %d", self._step)
        self._write(_complete(self._states))
        self._saved = self._step


def _complete(states: dict[str, Any]) -> dict[str, Any]:
    return {name: value() if callable(value) else value for name, value in states.items()}
