"""Environments of the verifiers package, unchanged: those of its Environments Hub, with a ``load_environment``.

Such an environment runs its own loop and asks a client for each turn. Here the client passes the request on to the
conversation, whose policy samples the turn. The environment's tools, stop conditions, and rubric stay its own.

The loops run on a thread of their own, because the package's tools may block.
"""

import asyncio
import contextlib
import itertools
import json
import signal
import threading
import time
import types
import uuid
from collections.abc import Coroutine, Iterator
from typing import Any

import verifiers.legacy as vf
from verifiers.legacy.clients.client import Client
from verifiers.legacy.envs import environment as package
from verifiers.legacy.types import Response, ResponseMessage, ToolCall

from grpo.environments import environment
from grpo.environments.environment import ContextFull, Message, Score, SetupError, Tool, Turn

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
    """Keep the package from taking over Ctrl-C: only a main thread may do so, and engines load it on another."""
    names: dict[str, Any] = {**vars(signal), "signal": lambda *_: None}
    package.signal = types.SimpleNamespace(**names)
    try:
        yield
    finally:
        package.signal = signal


class VerifiersEnvironment(environment.Environment):
    """One rollout of an environment of the package. The label is its row as JSON, as ``data.verifiers`` writes it."""

    loaded_environment: Any

    def __init__(self, prompt: str, label: str) -> None:
        super().__init__(prompt, label)
        self._row = json.loads(label)
        if not isinstance(self._row, dict) or "prompt" not in self._row:
            raise ValueError("the label is not a row of the environment; write the data with python -m data.verifiers")
        self.state: Any = None
        self._ended = asyncio.Event()

    async def drive(self, turn: Turn) -> None:
        """Run the environment's own loop."""
        await _run_apart(self._run(_PolicyClient(self, turn, asyncio.get_running_loop())))

    async def _run(self, client: "_PolicyClient") -> None:
        try:
            self.state = await self.loaded_environment.rollout(self._row, client, "policy", {})
        finally:
            self._ended.set()
        if self.state["error"] is not None:
            raise self.state["error"]

    async def score(self, messages: list[Message], ending: str) -> Score:
        """Return the reward of its rubric; the rollout is solved from the environment's ``pass_threshold`` on."""
        if self.state is None:
            raise ValueError("it asked for no turn, so there is nothing to score")
        await _run_apart(self._score())
        reward = float(self.state["reward"])
        metrics = {f"rubric.{name}": float(value) for name, value in (self.state["metrics"] or {}).items()}
        return Score(reward, float(reward >= self.loaded_environment.pass_threshold), metrics)

    async def _score(self) -> None:
        await self._ended.wait()  # a loop that a limit has cancelled releases what it holds
        try:
            await self.loaded_environment.rubric.score_rollout(self.state)
        finally:
            await self.loaded_environment.rubric.cleanup(self.state)


async def _run_apart(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on the package's loop. If the caller is cancelled, so is the coroutine."""
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, _loop))


class _PolicyClient(Client[None, list[Message], tuple[Message, bool], Tool]):
    """A client of the package whose model is the conversation's policy."""

    def __init__(self, rollout: VerifiersEnvironment, turn: Turn, engine: asyncio.AbstractEventLoop) -> None:
        super().__init__(None)
        self._rollout, self._turn, self._engine = rollout, turn, engine
        self._known: list[Message] = []  # as the policy has it, with its own tokens

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
        self._rollout.state = others["state"]
        pairs = zip(map(_content, self._known), map(_content, prompt), strict=False)
        shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        history = [*self._known[:shared], *prompt[shared:]]
        turn = self._turn(history, [tool.as_openai() for tool in tools or []])
        try:
            message, is_cut = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(turn, self._engine))
        except ContextFull as error:
            raise vf.OverlongPromptError("the conversation has ended") from error
        self._known = [*history, message]
        return message, is_cut

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
    """Return the parts by which a message counts as one that the policy already knows."""
    calls = [(call["id"], *call["function"].values()) for call in message.get("tool_calls") or []]
    return message["role"], message.get("content") or "", message.get("tool_call_id"), calls


def rows(kind: type[VerifiersEnvironment]) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Return the environment's training rows and its evaluation rows, None if it has no separate ones."""
    loaded = kind.loaded_environment
    held_out = loaded.eval_dataset is not None or loaded.eval_dataset_source is not None
    has_train = loaded.dataset is not None or loaded.dataset_source is not None
    train = [dict(row) for row in loaded.get_dataset()] if has_train else []
    return train, [dict(row) for row in loaded.get_eval_dataset()] if held_out else None
