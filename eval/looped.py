"""Drives vLLM's offline engine from an event loop: samples and conversations are drawn by the code of training.

The engine stays in this process. A step of it holds up the loop, as long as a token takes.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from copy import deepcopy
from typing import Any


class LoopedLLM:
    """Stands in for vLLM's ``AsyncLLM``.

    Args:
        engine: vLLM's ``LLMEngine``.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._waiting: dict[str, asyncio.Queue[Any]] = {}
        self._steps: asyncio.Task[None] | None = None

    async def generate(self, prompt: Any, params: Any, /, request_id: str) -> AsyncGenerator[Any, None]:
        """Yield the outputs of one request, as they come; closing them early aborts it."""
        outputs: asyncio.Queue[Any] = asyncio.Queue()
        self._engine.add_request(request_id, prompt, params)
        self._waiting[request_id] = outputs
        if self._steps is None or self._steps.done():
            self._steps = asyncio.create_task(self._step())
        is_over = False
        try:
            while not is_over:
                output = await outputs.get()
                if isinstance(output, Exception):
                    raise output
                is_over = output.finished
                yield output
        finally:
            if self._waiting.pop(request_id, None) is not None:
                self._engine.abort_request([request_id])

    async def _step(self) -> None:
        try:
            while self._waiting:
                for output in self._engine.step():
                    if outputs := self._waiting.get(output.request_id):
                        outputs.put_nowait(output)
                        if output.finished:
                            del self._waiting[output.request_id]
                await asyncio.sleep(0)
        except Exception as error:  # every request gets it, and ends the evaluation
            waiting, self._waiting = self._waiting, {}
            for outputs in waiting.values():
                outputs.put_nowait(error)


class LoopedEngine:
    """Stands in for OpenRLHF's ``LLMRayActor``.

    Args:
        engine: vLLM's ``LLMEngine``.
    """

    def __init__(self, engine: Any) -> None:
        self.llm = LoopedLLM(engine)

    async def generate(self, prompt_token_ids: Sequence[int], sampling_params: Any) -> Any:
        """Return the last output of one request."""
        prompt = {"prompt_token_ids": list(prompt_token_ids)}
        last = None
        async for output in self.llm.generate(prompt, deepcopy(sampling_params), request_id=uuid.uuid4().hex):
            last = output
        return last
