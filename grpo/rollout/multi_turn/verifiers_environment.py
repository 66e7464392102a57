"""Environments of the verifiers package, unchanged: those of its Environments Hub, with a ``load_environment``.

Such an environment runs its own loop and asks a client for each turn. Here the client passes the request on to the
conversation, whose policy samples the turn. The environment's tools, stop conditions, and rubric stay its own.

The loops run on a thread of their own, because the package's tools may block.
"""

import asyncio
import contextlib
import functools
import itertools
import json
import signal
import threading
import time
import types
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import verifiers.legacy as vf
from verifiers.legacy.clients.client import Client
from verifiers.legacy.envs import environment as package
from verifiers.legacy.types import Response, ResponseMessage, ToolCall

from grpo.rollout.multi_turn import environment
from grpo.rollout.multi_turn.environment import Message, Score, SetupError, Tool

_loop = asyncio.new_event_loop()
threading.Thread(target=_loop.run_forever, name="verifiers", daemon=True).start()


def environment_of(name: str, **arguments: Any) -> type["VerifiersEnvironment"]:
    """Return the class of an installed environment, for ENVIRONMENT=verifiers:NAME or a .py file.

    Args:
        name: as in ``vf.load_environment``, whose further arguments are `arguments`.

    Raises:
        SetupError: if it is not installed, cannot be loaded, or is of a kind that does not work here.
    """
    try:
        with _block_signals():
            loaded: Any = vf.load_environment(name, **arguments)
    except Exception as error:
        raise SetupError(
            f"the verifiers environment {name} cannot be loaded ({error})",
            "install its package, and try it with verifiers.load_environment",
        ) from error
    return adapt_environment(loaded)


def adapt_environment(loaded: Any) -> type["VerifiersEnvironment"]:
    """Return the class of an environment of the package.

    Raises:
        SetupError: if it is of a kind that does not work here.
    """
    what = f"the verifiers environment {getattr(loaded, 'env_id', '') or type(loaded).__name__}"
    if not isinstance(loaded, vf.Environment):
        raise SetupError(f"{what} is not a verifiers.Environment (verifiers.v1 is not supported)", "use another one")
    if loaded.message_type != "chat":
        raise SetupError(f"{what} completes text instead of a chat", "use another one")
    if loaded.requires_group_rollouts or loaded.provides_advantages:
        raise SetupError(f"{what} scores several rollouts together, which is not supported", "use another one")
    return type("Environment", (VerifiersEnvironment,), {"loaded_environment": loaded})


@contextlib.contextmanager
def _block_signals() -> Iterator[None]:
    """Keep the package from taking over Ctrl-C, which only a main thread may do, and engines load it on another."""
    names: dict[str, Any] = {**vars(signal), "signal": lambda *_: None}
    package.signal = types.SimpleNamespace(**names)
    try:
        yield
    finally:
        package.signal = signal


def _apart(method: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Run a method on the package's loop. If the caller is cancelled, so is the method."""

    @functools.wraps(method)
    async def call(*arguments: Any) -> Any:
        running: Any = method(*arguments)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(running, _loop))

    return call


class VerifiersEnvironment(environment.Environment):
    """One rollout of an environment of the package. The label is its row as JSON, as ``data.verifiers`` writes it."""

    loaded_environment: Any
    answers_calls = True

    def __init__(self, prompt: str, label: str) -> None:
        super().__init__(prompt, label)
        self._row = json.loads(label)
        if not isinstance(self._row, dict) or "prompt" not in self._row:
            raise ValueError("the label is not a row of the environment; write the data with python -m data.verifiers")
        self._asked: asyncio.Queue[list[Message]] = asyncio.Queue()
        self._answer: asyncio.Future[tuple[Message, bool]] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._state: Any = None
        self._is_over = False

    @_apart
    async def start(self) -> list[Message]:
        """Start its loop, and return the messages of the first turn."""
        rollout = self.loaded_environment.rollout(self._row, _PolicyClient(self), "policy", {})
        self._task = asyncio.create_task(rollout)
        messages = await self._next()
        if messages is None:
            raise ValueError("it ended before a first turn")
        return messages

    @_apart
    async def reply(self, messages: list[Message]) -> list[Message] | None:
        """Return what the next turn is asked for, after editing a history that the environment has rewritten."""
        assert self._answer is not None
        self._answer.set_result((messages[-1], False))
        asked = await self._next()
        if asked is None:
            return None
        pairs = zip(map(_content, messages), map(_content, asked), strict=False)
        shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        del messages[shared:]
        return asked[shared:]

    async def _next(self) -> list[Message] | None:
        """Return the history for the next turn that it asks for; None if it has ended."""
        assert self._task is not None
        waiting = asyncio.ensure_future(self._asked.get())
        try:
            await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
        finally:
            waiting.cancel()
        self._note_end()
        return None

    def _note_end(self) -> None:
        """Keep the state at the end, or raise what ended the loop."""
        assert self._task is not None
        self._state = self._task.result()
        if self._state["error"] is not None:
            raise self._state["error"]

    async def answer(self, messages: list[Message], tools: tuple[Tool, ...], state: Any) -> tuple[Message, bool]:
        """Wait for a turn of the policy, and whether a length limit cut it. The client calls it."""
        if self._is_over:
            raise vf.OverlongPromptError("the conversation has ended")
        if self._state is not None and tools != self.tools:
            raise ValueError("it changed its tools during a rollout, which is not supported")
        self.tools, self._state = tools, state
        self._answer = asyncio.get_running_loop().create_future()
        await self._asked.put(messages)
        return await self._answer

    @_apart
    async def score(self, messages: list[Message], ending: str) -> Score:
        """Return the reward of its rubric; the rollout is solved from the environment's ``pass_threshold`` on."""
        self._is_over = True
        if ending == "time":  # its loop may be in the middle of something
            await self._stop()
        elif self._task is not None and self._answer is not None and not self._task.done():
            if ending == "length" and messages[-1]["role"] == "assistant":
                self._answer.set_result((messages[-1], True))
            else:
                self._answer.set_exception(vf.OverlongPromptError("the conversation has ended"))
            await asyncio.wait({self._task})
            self._note_end()
        if self._state is None:
            raise ValueError("it asked for no turn, so there is nothing to score")
        try:
            await self.loaded_environment.rubric.score_rollout(self._state)
        finally:
            await self.loaded_environment.rubric.cleanup(self._state)
        reward = float(self._state["reward"])
        metrics = {f"rubric.{name}": float(value) for name, value in (self._state["metrics"] or {}).items()}
        return Score(reward, float(reward >= self.loaded_environment.pass_threshold), metrics)

    @_apart
    async def close(self) -> None:
        """Cancel the environment's own loop, which releases what it holds."""
        await self._stop()

    async def _stop(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})


class _PolicyClient(Client[None, list[Message], tuple[Message, bool], Tool]):
    """A client of the package whose model is the conversation's policy."""

    def __init__(self, rollout: VerifiersEnvironment) -> None:
        super().__init__(None)
        self._rollout = rollout

    def setup_client(self, config: Any) -> None:
        """There is no address to connect to."""

    async def to_native_tool(self, tool: Any) -> Tool:
        """Return a tool of the package as one of ours."""
        return Tool(tool.name, tool.description, tool.parameters)

    async def to_native_prompt(self, messages: Any) -> tuple[list[Message], dict[str, Any]]:
        """Return messages of the package in the form of the OpenAI protocol."""
        return [_from_package(message) for message in messages], {}

    async def get_native_response(  # type: ignore[override, unused-ignore]
        self, prompt: list[Message], model: str, sampling_args: Any, tools: list[Tool] | None = None, **others: Any
    ) -> tuple[Message, bool]:
        """Return the policy's turn, and whether a length limit cut it. Sampling is the run's, not the environment's."""
        return await self._rollout.answer(prompt, tuple(tools or ()), others["state"])

    async def raise_from_native_response(self, response: tuple[Message, bool]) -> None:
        """Accept every turn."""

    async def from_native_response(self, response: tuple[Message, bool]) -> Response:
        """Return a turn as a response of the package."""
        message, is_cut = response
        calls = [ToolCall(id=call["id"], **call["function"]) for call in message.get("tool_calls") or []]
        said = ResponseMessage(
            content=message.get("content") or "",
            reasoning_content=message.get("reasoning_content"),
            tool_calls=calls or None,
            finish_reason="length" if is_cut else "tool_calls" if calls else "stop",
            is_truncated=is_cut,
        )
        return Response(id=uuid.uuid4().hex, created=int(time.time()), model="policy", message=said)

    async def close(self) -> None:
        """There is no connection to close."""


def _from_package(message: Any) -> Message:
    """Return a message of the package in the form of the OpenAI protocol."""
    given = message.model_dump(exclude_none=True)
    content = given.get("content", "")
    if not isinstance(content, str):
        if any(part.get("type") != "text" for part in content):
            raise ValueError("it shows the model other content than text, which is not supported")
        content = "".join(part["text"] for part in content)
    made = {key: given[key] for key in ("role", "reasoning_content", "tool_call_id") if key in given}
    functions = [
        (call["id"], {"name": call["name"], "arguments": call["arguments"]}) for call in given.get("tool_calls") or []
    ]
    calls = [{"id": id_, "type": "function", "function": function} for id_, function in functions]
    return made | {"content": content} | ({"tool_calls": calls} if calls else {})


def _content(message: Message) -> tuple[Any, ...]:
    """Return what decides whether a message is still the one that the policy knows."""
    calls = [(call["id"], *call["function"].values()) for call in message.get("tool_calls") or []]
    return message["role"], message.get("content") or "", message.get("tool_call_id"), calls


def rows(kind: type[VerifiersEnvironment]) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Return the environment's rows to train on, and those to evaluate on; None if it has none of its own."""
    loaded = kind.loaded_environment
    held_out = loaded.eval_dataset is not None or loaded.eval_dataset_source is not None
    has_train = loaded.dataset is not None or loaded.dataset_source is not None
    train = [dict(row) for row in loaded.get_dataset()] if has_train else []
    return train, [dict(row) for row in loaded.get_eval_dataset()] if held_out else None
