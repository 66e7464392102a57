"""Threads in which the samples of an engine wait for their reward.

OpenRLHF calls the reward by `asyncio.to_thread`. Its pool has by default four threads more than the machine has cores,
and at most 32: further samples queue there, before the deadline of the judge begins to run for them.
"""

import asyncio
import weakref
from concurrent.futures import ThreadPoolExecutor

# More than an engine has samples at once. A thread is made only where all others are taken: there are no more of them
# than samples have waited side by side.
MOST_THREADS = 1024

_served: "weakref.WeakSet[asyncio.AbstractEventLoop]" = weakref.WeakSet()


def provide() -> None:
    """Let all samples that the running event loop sends to `asyncio.to_thread` wait side by side.

    Raises:
        RuntimeError: where no event loop is running.
    """
    loop = asyncio.get_running_loop()
    if loop not in _served:
        _served.add(loop)
        loop.set_default_executor(ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="reward"))
