"""Threads in which an engine's rollouts wait for their reward.

OpenRLHF calls the reward by `asyncio.to_thread`. By default, its pool has four threads more than the machine has cores,
and at most 32. Further rollouts queue there before the judge's deadline starts to run for them.
"""

import asyncio
import weakref
from concurrent.futures import ThreadPoolExecutor

# More than an engine has samples at once. A thread is created only if all others are busy, so there are never more
# threads than rollouts waiting at the same time.
MOST_THREADS = 1024

_served: "weakref.WeakSet[asyncio.AbstractEventLoop]" = weakref.WeakSet()


def provide() -> None:
    """Let all rollouts that the running event loop sends to `asyncio.to_thread` wait in parallel.

    Raises:
        RuntimeError: if no event loop is running.
    """
    loop = asyncio.get_running_loop()
    if loop not in _served:
        _served.add(loop)
        loop.set_default_executor(ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="reward"))
