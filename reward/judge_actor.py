"""The judge of a run: one Ray actor on the launcher's node. Without Ray, the judge is in the process that calls it.

One process thus holds limits, circuit breakers, judgments, and means for all engines of a run. It also holds the key
and reaches the local stand-in, so no other node needs either.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reward import settings
from reward.chain import connect
from reward.judge import Judge, Verdict

VARIABLE = "GRPO_JUDGE_ACTOR"  # the actor's name, set by the launcher for a run with a judge
NAME = "grpo-judge"
MOST_WAITING = 8192  # rollouts of all engines that wait for their judgement at once
SPARE_SECONDS = 60.0  # beside the judge's own deadline, which starts when the actor begins with a rollout


class JudgeActor:
    """The judge that all engines call; Ray runs it as an actor with one event loop."""

    async def begin(self, keys: Mapping[str, str]) -> None:
        """Take the keys, which Ray would keep and show as arguments of the actor, and begin."""
        os.environ.update(keys)
        self._judge = make_judge()

    async def reward_response(self, *sample: Any) -> tuple[float, Verdict]:
        """Return what :meth:`reward.judge.Judge.reward_response` returns."""
        return await self._judge.reward_response(*sample)


def find_judge() -> Callable[..., tuple[float, Verdict]]:
    """Return :meth:`reward.judge.Judge.reward_response` of the judge that this process calls, for all threads.

    Raises SettingsError, ValueError or OSError without a judge; its result raises RayError if the actor has died.
    """
    name = os.environ.get(VARIABLE)
    if not name:
        judge, loop = make_judge(), asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True, name="judge").start()
        return lambda *sample: asyncio.run_coroutine_threadsafe(judge.reward_response(*sample), loop).result()
    import ray  # engines outside of a run, and the other commands, have none

    actor: Any = ray.get_actor(name)
    get: Any = ray.get
    configured = settings.from_environment()
    seconds = SPARE_SECONDS + (configured.chain.deadline if configured else 0.0)
    return lambda *sample: get(actor.reward_response.remote(*sample), timeout=seconds)


def make_judge() -> Judge:
    """Return a judge in this process, which has the file of the run directory for itself."""
    stand_in, folder = os.environ.get(settings.STAND_IN_VARIABLE), os.environ.get("GRPO_RUN_DIR")
    configured = settings.from_environment(bool(stand_in))
    if configured is None or not folder:
        raise settings.SettingsError("the judge is off, or has no run directory", "set --judge and GRPO_RUN_DIR")
    return Judge(configured, Path(folder, "judge.jsonl"), connect(configured.chain, settings.api_key(), stand_in))


def start(options: Mapping[str, Any]) -> Any:
    """Start the actor from the driver, with Ray's options, if the run has one; return its handle, which keeps it."""
    import ray

    name = os.environ.get(VARIABLE)
    if not name:
        return None
    place = {"num_cpus": 0, "max_concurrency": MOST_WAITING, **options}
    actor: Any = ray.remote(JudgeActor).options(name=name, **place).remote()
    # Ray does not pass on this process's keys.
    ray.get(actor.begin.remote({key: os.environ[key] for key in settings.KEY_VARIABLES if key in os.environ}))
    return actor


def require() -> None:
    """Raise RuntimeError, in the controller, if the run's actor has died, or does not answer.

    Without it every rollout would get what --judge_fallback says, for the rest of the run.
    """
    name = os.environ.get(VARIABLE)
    if not name:
        return
    import ray

    try:
        ray.get(ray.get_actor(name).__ray_ready__.remote(), timeout=SPARE_SECONDS)
    except (ValueError, ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
        raise RuntimeError(f"the judge's process has died, or does not answer ({type(error).__name__})") from None
