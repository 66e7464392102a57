import time

import pytest
import ray

from grpo import cluster


def test_the_first_error_of_any_actor_ends_the_wait(ray_cluster):
    @ray.remote
    def slow():
        time.sleep(300)

    @ray.remote
    def broken():
        raise RuntimeError("the engine has no model")

    started = time.monotonic()
    refs = [slow.remote(), broken.remote()]
    with pytest.raises(RuntimeError, match="the engine has no model"):
        cluster.wait_for(refs)
    assert time.monotonic() - started < 200
    with pytest.raises(ray.exceptions.GetTimeoutError):  # stock's way: the error is there, and the slow one awaited
        ray.get(refs, timeout=3)
    ray.cancel(refs[0], force=True)


def test_all_are_awaited(ray_cluster):
    cluster.wait_for([])
    cluster.wait_for([ray.put(1), ray.put(2)])
