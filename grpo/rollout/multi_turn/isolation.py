"""An environment in a thread and an event loop of its own: what blocks in it does not stop the engine's rollouts."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from grpo.rollout.multi_turn.environment import Environment, Message, Score

logger = logging.getLogger("openrlhf.grpo.isolation")

GRACE_SECONDS = 5.0  # after a deadline, for the thread to show that it is not blocked
CLOSE_SECONDS = 10.0


class EnvironmentFault(Exception):
    """An error of an environment outside its tools. Its rollout gets no reward; the others continue."""


def format_value(value: object, form: Callable[[object], str] = repr) -> str:
    """Return the text of an environment's object, whose class may raise instead of giving one."""
    try:
        return form(value)
    except Exception:
        return f"an object of type {type(value).__name__} that cannot be shown"


def describe_error(error: BaseException) -> str:
    """Return the kind and the text of an environment's error."""
    return f"{type(error).__name__}: {format_value(error, str)}"


class _NotMade(Environment):
    """Stands in until the constructor has returned."""

    async def score(self, messages: list[Message], ending: str) -> Score:
        """Refuse: nothing happened that could be scored."""
        raise EnvironmentFault("it was not made")


class Isolated(Environment):
    """An environment that is made and runs in a thread of its own. A caller's deadline holds even if it blocks there.

    Args:
        make: returns the environment; `start` calls it.

    Attributes:
        is_blocked: whether a coroutine has not let go of the thread after its deadline. The thread then stays until
            it does, and the environment answers no more.
    """

    def __init__(self, make: Callable[[], Environment]) -> None:
        self._make = make
        self._inner: Environment = _NotMade("", "")
        self._is_late = self.is_blocked = self._is_over = False
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._serve, name="environment", daemon=True).start()

    @property
    def sampled_tokens(self) -> int:
        """Return the environment's count."""
        return self._inner.sampled_tokens

    @sampled_tokens.setter
    def sampled_tokens(self, count: int) -> None:
        self._inner.sampled_tokens = count

    async def start(self) -> list[Message]:
        """Make the environment; see :meth:`grpo.rollout.multi_turn.environment.Environment.start`."""
        return await self._ask(self._begin)

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """See :meth:`grpo.rollout.multi_turn.environment.Environment.call`."""
        return await self._ask(self._inner.call, name, arguments)

    async def reply(self, messages: list[Message]) -> list[Message] | None:
        """See :meth:`grpo.rollout.multi_turn.environment.Environment.reply`."""
        return await self._ask(self._inner.reply, messages)

    async def score(self, messages: list[Message], ending: str) -> Score:
        """See :meth:`grpo.rollout.multi_turn.environment.Environment.score`."""
        return await self._ask(self._inner.score, messages, ending)

    async def is_free(self) -> bool:
        """Return whether the thread answers; after a deadline, it has GRACE_SECONDS for it."""
        if self._is_late and not self.is_blocked:
            ping = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop)
            done, _ = await asyncio.wait([asyncio.wrap_future(ping)], timeout=GRACE_SECONDS)
            self._is_late, self.is_blocked = False, not done
        return not self.is_blocked

    async def end(self) -> bool:
        """Close the environment and end the thread; return whether closing succeeded in time.

        The thread does both, also if the caller is cancelled meanwhile, or later if it is blocked now.
        """
        closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        seconds = 0.0 if self.is_blocked else CLOSE_SECONDS + GRACE_SECONDS
        done, _ = await asyncio.wait([asyncio.wrap_future(closing)], timeout=seconds)
        self.is_blocked = not done
        if not done:
            logger.error("close of an environment does not return")
        return bool(done) and not closing.cancelled() and closing.result()

    async def _ask(self, method: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        if not await self.is_free():
            raise EnvironmentFault("it blocked its thread beyond a deadline: await what takes long in it")
        running = asyncio.run_coroutine_threadsafe(_await_method(method, *arguments), self._loop)
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and not task.cancelling():  # libraries' cancel scopes leak; it must not look like the caller's
                raise RuntimeError("a cancellation inside the environment") from None
            self._is_late = True
            raise

    async def _begin(self) -> list[Message]:
        try:
            self._inner = self._make()
        except (Exception, SystemExit) as error:
            raise EnvironmentFault(f"its constructor failed ({describe_error(error)})") from error
        self.answers_calls = self._inner.answers_calls
        messages = await self._inner.start()
        try:
            self.tools = list(self._inner.tools)  # a property of some environments
        except Exception as error:
            raise EnvironmentFault(f"its tools cannot be listed ({describe_error(error)})") from error
        return messages

    async def _close(self) -> bool:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await _await_method(self._inner.close)
            return True
        except (Exception, asyncio.CancelledError) as error:
            logger.error("close of an environment failed: %s", describe_error(error), exc_info=error)
            return False
        finally:
            self._is_over = True
            self._loop.call_later(0, self._loop.stop)  # after the caller has this result

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._is_over:  # a tool may have stopped the loop
            self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


async def _await_method(method: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    try:
        return await method(*arguments)
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:  # such as SystemExit, which would end the thread, and the engine after it
        raise RuntimeError(f"it raised {describe_error(error)}") from error
