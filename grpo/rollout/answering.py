"""The prompts that an engine answers: it samples their answers first, and then these wait for their rewards.

A prompt whose answers all wait needs the engine no longer, so the engine may get the next policy. Imports no DeepSpeed.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_ends: dict[asyncio.Task[Any], asyncio.Future[None]] = {}  # of the rollouts that may still call the engine
_waiting: set[int | None] = set()  # the seeds of the prompts whose answers wait


async def sample(answers: Sequence[Coroutine[Any, Any, Any]]) -> list[asyncio.Task[Any]]:
    """Start the answers to a prompt. Return their tasks once none of them calls the engine any more."""
    tasks = [asyncio.create_task(answer) for answer in answers]
    for task in tasks:
        _ends[task] = asyncio.get_running_loop().create_future()
        task.add_done_callback(_end)  # an answer without a reward, or an error
    await asyncio.gather(*(_ends[task] for task in tasks))
    return tasks


def end_sampling() -> None:
    """Note that the answer of the running task is sampled: its reward is next."""
    if task := asyncio.current_task():
        _end(task)


def _end(task: "asyncio.Task[Any]") -> None:
    if end := _ends.pop(task, None):
        end.set_result(None)


@contextmanager
def count_as_waiting(seed: int | None) -> Iterator[None]:
    """Let a prompt count as sampled meanwhile."""
    _waiting.add(seed)
    try:
        yield
    finally:
        _waiting.discard(seed)


def list_sampled() -> list[int | None]:
    """Return the seeds of the prompts whose answers wait for rewards."""
    return list(_waiting)
