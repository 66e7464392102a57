"""The judge's process in a joined cluster: its death is noticed. Only Ray itself tells of an actor that was killed."""

import os
import signal

import pytest
import ray
from ray.exceptions import RayActorError

from reward import judge_actor

pytestmark = pytest.mark.timeout(600)


def test_a_judge_that_has_died_is_noticed(ray_cluster, monkeypatch):
    monkeypatch.setenv(judge_actor.VARIABLE, judge_actor.NAME)
    judge = ray.remote(judge_actor.JudgeActor).options(name=judge_actor.NAME, num_cpus=0).remote()
    pid = ray.get(judge.__ray_call__.remote(lambda _: os.getpid()))
    judge_actor.require()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RayActorError):
        ray.get(judge.__ray_ready__.remote(), timeout=400)
    with pytest.raises(RuntimeError, match="judge"):
        judge_actor.require()
