"""Saves a checkpoint at the end of a run, and when the launcher asks for it, in the middle of a step if ranks are idle.

While the engines sample or evaluate, adapter, optimizer and random states are those of the last completed step. So a
checkpoint of that step is the one that the end of the step would have saved.
"""

import copy
import functools
import logging
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

from grpo.run.run_files import RunFiles
from grpo.run.save_request import SaveRequest
from grpo.stack.problem import UserError
from grpo.stack.secrets import redact
from grpo.stack.upstream.trainer import PPOTrainer

logger = logging.getLogger("openrlhf.grpo.on_request")

LOOK_SECONDS = 0.2


class SaveOnRequest:
    """Watches for a request in a thread of the controller.

    A state that is a function is called when a checkpoint needs it. With PIPELINE=1, the batch of the next step may
    still wait for rewards, and a step that saves nothing does not.

    Args:
        trainer: OpenRLHF's ``PPOTrainer``; its phases from log-probs to checkpoint keep the thread waiting.
        step: the last completed step, which has been saved; 0 at the start of a run.
    """

    def __init__(self, trainer: PPOTrainer, step: int) -> None:
        self._trainer = trainer
        self._request = SaveRequest(RunFiles(Path(trainer.args.run_dir)).save_request)
        self._ranks_idle = threading.Lock()
        self._is_busy = False  # whether the loop holds the lock
        self._states: dict[str, Any] | None = None
        self._step = self._saved = step
        maker = trainer.experience_maker
        maker.make_experience_batch = self._from_here_busy(maker.make_experience_batch)
        trainer.save_logs_and_checkpoints = self._idle_again(trainer.save_logs_and_checkpoints)
        threading.Thread(target=self._watch, name="save on request", daemon=True).start()

    def save_last(self) -> None:
        """Save the last step of the run, unless it is a checkpoint already, or the run saves none.

        Raises:
            ray.exceptions.RayTaskError: if a rank cannot save it.
        """
        if math.isfinite(self._trainer.args.save_steps):
            with self._ranks_idle:
                self._save()

    def _from_here_busy(self, function: Callable) -> Callable:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self._is_busy:
                self._ranks_idle.acquire()
                self._is_busy = True
            return function(*args, **kwargs)

        return wrapper

    def _idle_again(self, save: Callable) -> Callable:
        @functools.wraps(save)
        def wrapper(step: int, logs: dict[str, Any], states: dict[str, Any]) -> None:
            is_due = step % self._trainer.args.save_steps == 0
            save(step, logs, _complete(states) if is_due else states)
            self._step, self._states = step, copy.deepcopy(states)
            if is_due:
                self._saved = step
            if self._is_busy:
                self._is_busy = False
                self._ranks_idle.release()

        return wrapper

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
        ray.get(
            self._trainer.actor_model_group.async_run_method(
                method_name="save_checkpoint", tag=f"global_step{self._step}", client_states=_complete(self._states)
            )
        )
        self._saved = self._step


def _complete(states: dict[str, Any]) -> dict[str, Any]:
    return {name: value() if callable(value) else value for name, value in states.items()}
