"""Drives vLLM's offline engine through its asynchronous interface: in this process, without an event loop.

A sample is a coroutine that waits for the engine's outputs, as in training. Both therefore draw samples with the same
code.
"""

import types
from collections.abc import Coroutine, Generator, Iterable, Iterator
from typing import Any, TypeVar

Key = TypeVar("Key")
Made = TypeVar("Made")


class Stepped:
    """Stands in for vLLM's ``AsyncLLM`` in coroutines that :func:`run` drives.

    Args:
        engine: vLLM's ``LLMEngine``.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def generate(self, prompt: Any, params: Any, request_id: str) -> "SteppedOutput":
        """Return the outputs of one request, as they come."""
        self._engine.add_request(request_id, prompt, params)
        return SteppedOutput(self._engine, request_id)


class SteppedOutput:
    """The outputs of one request. Closing them early aborts it."""

    def __init__(self, engine: Any, request_id: str) -> None:
        self._engine, self._request_id = engine, request_id
        self._is_over = False

    def __aiter__(self) -> "SteppedOutput":
        return self

    async def __anext__(self) -> Any:
        if self._is_over:
            raise StopAsyncIteration
        self._is_over = True  # also if an interrupted evaluation drops a waiting sample: nothing to abort
        output = await _output_of(self._request_id)
        self._is_over = output.finished
        return output

    async def aclose(self) -> None:
        """Abort the request, unless it is over."""
        if not self._is_over:
            self._engine.abort_request([self._request_id])


@types.coroutine
def _output_of(request_id: str) -> Generator[str, Any, Any]:
    return (yield request_id)


def run(
    engine: Any, samples: Iterable[tuple[Key, Coroutine[str, Any, Made]]], most: int | None = None
) -> Iterator[tuple[Key, Made]]:
    """Yield each sample when it is finished.

    Args:
        engine: the engine of the samples' :class:`Stepped`.
        samples: not started; each sends at least one request, and has one in the engine at a time.
        most: the number in progress at a time; None for all.
    """
    left = iter(samples)
    waiting: dict[str, tuple[Key, Coroutine[str, Any, Made]]] = {}
    while True:
        while (most is None or len(waiting) < most) and (begun := next(left, None)):
            waiting[begun[1].send(None)] = begun
        if not waiting:
            return
        for output in engine.step():
            key, sample = waiting.pop(output.request_id)
            try:
                waiting[sample.send(output)] = key, sample
            except StopIteration as end:
                yield key, end.value
