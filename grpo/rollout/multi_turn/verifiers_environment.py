"""Environments of the verifiers package, unchanged: those of its Environments Hub, with a ``load_environment``.

Such an environment runs its own loop and asks a client for each turn. Here the client passes the request on to the
conversation, whose policy samples the turn. The environment's tools, stop conditions, and rubric stay its own.

The loop runs on a thread of its own: a tool that blocks holds up other environments of the package, never the engine.
"""

import asyncio
import contextlib
import functools
import json
import signal
import threading
import time
import types
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import verifiers.legacy as vf
from verifiers.legacy.clients.client import Client
from verifiers.legacy.envs import environment as package

from grpo.rollout.multi_turn import environment
from grpo.rollout.multi_turn.environment import Message, Score, SetupError, Tool
from grpo.rollout.multi_turn.verifiers_messages import from_package, make_response

Value = TypeVar("Value")


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

    class Environment(VerifiersEnvironment):
        loaded_environment = loaded

    return Environment


@contextlib.contextmanager
def _block_signals() -> Iterator[None]:
    """Keep the package from taking over Ctrl-C, which only a main thread may do, and engines load it on another."""
    names: dict[str, Any] = {**vars(signal), "signal": lambda *_: None}
    package.signal = types.SimpleNamespace(**names)
    try:
        yield
    finally:
        package.signal = signal


class VerifiersEnvironment(environment.Environment):
    """One rollout of an environment of the package. The label is its row as JSON, as ``data.verifiers`` writes it."""

    loaded_environment: Any
    answers_calls = True

    def __init__(self, prompt: str, label: str) -> None:
        super().__init__(prompt, label)
        row = json.loads(label)
        if not isinstance(row, dict) or "prompt" not in row:
            raise ValueError("the label is not a row of the environment; write the data with python -m data.verifiers")
        self._rollout = Rollout(self.loaded_environment, row)

    async def start(self) -> list[Message]:
        """Return the messages of the first turn."""
        request = await _run_on_loop(self._rollout.begin())
        if request is None:
            raise ValueError("it ended before a first turn")
        self.tools = request.tools
        return request.messages

    async def reply(self, messages: list[Message]) -> list[Message] | None:
        """Return what the next turn is asked for, after editing a history that the environment has rewritten."""
        request = await _run_on_loop(self._rollout.answer(messages[-1]))
        if request is None:
            return None
        if request.tools != self.tools:
            raise ValueError("it changed its tools during a rollout, which is not supported")
        shared = 0
        for ours, theirs in zip(messages, request.messages, strict=False):
            if _content(ours) != _content(theirs):
                break
            shared += 1
        del messages[shared:]
        return request.messages[shared:]

    async def score(self, messages: list[Message], ending: str) -> Score:
        """Return the reward of its rubric; the rollout is solved from the environment's ``pass_threshold`` on."""
        cut = messages[-1] if ending == "length" and messages[-1]["role"] == "assistant" else None
        state = await _run_on_loop(self._rollout.end(cut, is_aborted=ending == "time"))
        reward, threshold = float(state["reward"]), self.loaded_environment.pass_threshold
        metrics = {f"rubric.{name}": float(value) for name, value in (state["metrics"] or {}).items()}
        return Score(reward, float(reward >= threshold), metrics)

    async def close(self) -> None:
        """End the environment's own task, which releases what it holds."""
        await _run_on_loop(self._rollout.stop())


def _content(message: Message) -> tuple[Any, ...]:
    """Return what decides whether a message is still the one that the policy knows."""
    calls = [(call["id"], *call["function"].values()) for call in message.get("tool_calls") or []]
    return message["role"], message.get("content") or "", message.get("tool_call_id"), calls


@dataclass(frozen=True)
class Request:
    """A turn that the environment asks for."""

    messages: list[Message]
    tools: Sequence[Tool]
    answer: "asyncio.Future[tuple[Message, bool]]"


class Rollout:
    """The environment's own loop. All methods run on the thread of the package's environments."""

    def __init__(self, loaded: Any, row: dict[str, Any]) -> None:
        self._environment, self._row = loaded, row
        self._requests: asyncio.Queue[Request] = asyncio.Queue()
        self._current: Request | None = None
        self._task: asyncio.Task[Any] | None = None
        self._state: Any = None
        self._is_over = False

    async def begin(self) -> Request | None:
        """Start it, and return the first turn that it asks for; None if it asks for none."""
        rollout = self._environment.rollout(self._row, PolicyClient(self), "policy", {})
        self._task = asyncio.create_task(rollout)
        return await self._next()

    async def answer(self, message: Message) -> Request | None:
        """Give it the turn that it asked for, and return the next request; None if it has ended."""
        assert self._current is not None
        self._current.answer.set_result((message, False))
        return await self._next()

    async def _next(self) -> Request | None:
        assert self._task is not None
        waiting = asyncio.ensure_future(self._requests.get())
        try:
            await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
            self._current = waiting.result() if waiting.done() else None
        finally:
            waiting.cancel()
        if self._current is None:
            self._note_end()
        return self._current

    def _note_end(self) -> None:
        """Keep the state at the end, or raise what ended the loop."""
        assert self._task is not None
        self._state = self._task.result()
        if self._state["error"] is not None:
            raise self._state["error"]

    async def turn(self, messages: list[Message], tools: Sequence[Tool], state: Any) -> tuple[Message, bool]:
        """Wait for a turn of the policy, and whether a length limit cut it. The client calls it."""
        self._state = state
        if self._is_over:
            raise vf.OverlongPromptError("the conversation has ended")
        request = Request(messages, tools, asyncio.get_running_loop().create_future())
        await self._requests.put(request)
        return await request.answer

    async def end(self, cut: Message | None, is_aborted: bool) -> Any:
        """Let the loop end if a limit ended the conversation, score the rollout, and return its state.

        Args:
            cut: a last turn that a length limit cut, which the environment has not seen.
            is_aborted: the loop may be in the middle of something, and is cancelled.
        """
        self._is_over = True
        if is_aborted:
            await self.stop()
        elif self._task is not None and not self._task.done():
            self._refuse(cut)
            await asyncio.wait({self._task})
            self._note_end()
        if self._state is None:
            raise ValueError("it asked for no turn, so that there is nothing to score")
        try:
            await self._environment.rubric.score_rollout(self._state)
        finally:
            await self._environment.rubric.cleanup(self._state)
        return self._state

    def _refuse(self, cut: Message | None) -> None:
        waiting = [self._current] if self._current else []
        while not self._requests.empty():
            waiting.append(self._requests.get_nowait())
        for number, request in enumerate(each for each in waiting if not each.answer.done()):
            if cut is not None and not number:
                request.answer.set_result((cut, True))
            else:
                request.answer.set_exception(vf.OverlongPromptError("the conversation has ended"))

    async def stop(self) -> None:
        """Cancel the loop; its clean-up runs."""
        self._is_over = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})


class PolicyClient(Client[None, list[Message], tuple[Message, bool], Tool]):
    """A client of the package whose model is the conversation's policy."""

    def __init__(self, rollout: Rollout) -> None:
        super().__init__(None)
        self._rollout = rollout

    def setup_client(self, config: Any) -> None:
        """There is no address to connect to."""

    async def to_native_tool(self, tool: Any) -> Tool:
        """Return a tool of the package as one of ours."""
        return Tool(tool.name, tool.description, tool.parameters)

    async def to_native_prompt(self, messages: Any) -> tuple[list[Message], dict[str, Any]]:
        """Return messages of the package in the form of the OpenAI protocol."""
        return [from_package(message) for message in messages], {}

    async def get_native_response(  # type: ignore[override, unused-ignore]
        self, prompt: list[Message], model: str, sampling_args: Any, tools: list[Tool] | None = None, **others: Any
    ) -> tuple[Message, bool]:
        """Return the policy's turn, and whether a length limit cut it. Sampling is the run's, not the environment's."""
        return await self._rollout.turn(prompt, tuple(tools or ()), others["state"])

    async def raise_from_native_response(self, response: tuple[Message, bool]) -> None:
        """Accept every turn."""

    async def from_native_response(self, response: tuple[Message, bool]) -> Any:
        """Return a turn as a response of the package."""
        return make_response(*response, created=int(time.time()))

    async def close(self) -> None:
        """There is no connection to close."""


_starting = threading.Lock()


def package_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all environments of the package in this process, started at the first call."""
    with _starting:  # rollouts begin at once, each in its own thread
        return _start_loop()


@functools.cache
def _start_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=_serve, args=[loop], name="verifiers", daemon=True).start()
    return loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    while True:  # an environment may have stopped the loop, which the others need
        loop.run_forever()


async def _run_on_loop(coroutine: Coroutine[Any, Any, Value]) -> Value:
    """Run a coroutine on the package's loop; a cancelled caller cancels it."""
    return cast(Value, await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, package_loop())))


def rows(kind: type[VerifiersEnvironment]) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Return the environment's rows to train on, and those to evaluate on; None if it has none of its own."""
    loaded = kind.loaded_environment
    held_out = loaded.eval_dataset is not None or loaded.eval_dataset_source is not None
    has_train = loaded.dataset is not None or loaded.dataset_source is not None
    train = [dict(row) for row in loaded.get_dataset()] if has_train else []
    return train, [dict(row) for row in loaded.get_eval_dataset()] if held_out else None
