"""Where the judge is: of a run, in one Ray actor on the launcher's node; without Ray, in the process that asks.

So one process has limits, breakers, judgements and means, and all engines of a run ask it. It also has the key and
reaches the local stand-in, so no other node needs either.
"""

import asyncio
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from reward import chain, endpoint, settings
from reward.judge import Judge, Verdict
from reward.judgements import Judgements

VARIABLE = "GRPO_JUDGE_ACTOR"  # the actor's name, set by the launcher for a run with a judge
NAME = "grpo-judge"
# Samples of all engines that wait for their judgement at once; a thread is created only if all others are busy.
MOST_WAITING = 8192
# More than the judge's own deadline, which starts when the actor begins with a rollout.
SPARE_SECONDS = 60.0
_PROXIES = ("https_proxy", "all_proxy", "no_proxy")


class JudgeActor:
    """The judge that all engines ask; Ray runs it as an actor."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MOST_WAITING, thread_name_prefix="judge")
        self._judge: Judge | None = None

    async def begin(self, environment: Mapping[str, str]) -> None:
        """Take the variables of :func:`variables`, which a creation task would leave with Ray's head, and begin."""
        os.environ.update(environment)
        self._judge = make_judge()

    async def reward_response(self, correct: float, sample: tuple[str, str, str, bool]) -> tuple[float, Verdict]:
        """Return what :meth:`reward.judge.Judge.reward_response` returns."""
        assert self._judge
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._judge.reward_response, correct, *sample)


class DistantJudge:
    """Asks the actor; for all threads of an engine's process."""

    def __init__(self, name: str) -> None:
        import ray  # engines outside of a run, and the other commands, have none

        configured = settings.from_environment()
        self._get, self._actor = ray.get, ray.get_actor(name)
        self._seconds = SPARE_SECONDS + (configured.chain.deadline if configured else 0.0)

    def reward_response(
        self, correct: float, problem: str, response: str, gold: str, is_finished: bool
    ) -> tuple[float, Verdict]:
        """Return what :meth:`reward.judge.Judge.reward_response` returns.

        Raises:
            ray.exceptions.RayError: if the actor has died, or does not answer.
        """
        call: Any = self._actor.reward_response.remote(correct, (problem, response, gold, is_finished))
        return self._get(call, timeout=self._seconds)


def get_judge() -> Judge | DistantJudge:
    """Return the judge that this process asks.

    Raises:
        SettingsError, ValueError, sqlite3.Error, OSError: if there is none.
    """
    name = os.environ.get(VARIABLE)
    return DistantJudge(name) if name else make_judge()


def make_judge() -> Judge:
    """Return a judge in this process, which has the file of the run directory for itself."""
    configured = settings.from_environment()
    if configured is None:
        raise settings.SettingsError("the judge is off", "see `find_off_setting`")
    judgements = Judgements(settings.state_file())
    stand_in = os.environ.get(settings.STAND_IN_VARIABLE)
    if stand_in:
        configured = settings.adapt_to_stand_in(configured)
    where = None if stand_in else endpoint.from_environment()
    return Judge(configured, judgements, chain.connect(configured.chain, settings.api_key(), stand_in, where))


def start(options: Mapping[str, Any]) -> Any:
    """Start the actor from the driver if the run has one; return its handle, which keeps it alive.

    Args:
        options: of Ray, which place it on this node.
    """
    import ray

    name = os.environ.get(VARIABLE)
    if not name:
        return None
    place = {"num_cpus": 0, **options}
    actor = ray.remote(JudgeActor).options(name=name, max_concurrency=MOST_WAITING, **place).remote()
    begun: Any = actor
    ray.get(begun.begin.remote(variables()))
    return actor


def require() -> None:
    """Check, in the controller, that the actor answers if the run has one.

    Without it every rollout would get what JUDGE_FALLBACK says, for the rest of the run.

    Raises:
        RuntimeError: if it has died, or does not answer.
    """
    name = os.environ.get(VARIABLE)
    if not name:
        return
    import ray

    try:
        ray.get(ray.get_actor(name).__ray_ready__.remote(), timeout=SPARE_SECONDS)
    except (ValueError, ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
        raise RuntimeError(f"the judge's process has died, or does not answer ({type(error).__name__})") from None


def variables() -> dict[str, str]:
    """Return the variables of this process that Ray does not hand on: keys, and where requests go."""
    names = {*settings.KEY_VARIABLES, endpoint.FOREIGN_VARIABLE}
    return {name: value for name, value in os.environ.items() if name in names or name.lower() in _PROXIES}
