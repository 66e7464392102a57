"""Tools of a server of the Model Context Protocol (MCP), through the protocol's own client."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, ClassVar

from mcp import Client, MCPError, StdioServerParameters

from grpo.rollout.multi_turn import environment
from grpo.rollout.multi_turn.environment import Message, SetupError, Tool, ToolError

logger = logging.getLogger("openrlhf.grpo.mcp")


class McpEnvironment(environment.Environment):
    """The base of an environment whose tools are those of an MCP server; a subclass names the server and scores.

    Each rollout has its own connection, and its own process of a server that is started by a command: what one rollout
    changes there, no other sees.

    Attributes:
        server: a command with its arguments, or the URL of a running server.
        variables: environment variables of the process. It inherits a few harmless ones, and no secrets.
    """

    server: ClassVar[Sequence[str] | str]
    variables: ClassVar[dict[str, str]] = {}

    def __init__(self, prompt: str, label: str) -> None:
        super().__init__(prompt, label)
        self._over = asyncio.Event()
        self._connection: asyncio.Task[None] | None = None
        self._client: Client | None = None

    @classmethod
    def check(cls) -> None:
        """Connect once; see :meth:`grpo.rollout.multi_turn.environment.Environment.check`."""
        try:
            tools = asyncio.run(cls._try_server())
        except Exception as error:
            raise SetupError(
                f"the MCP server {cls._name()} cannot be reached ({_reason(error)})", "try its command or its URL"
            ) from error
        if not tools:
            raise SetupError(f"the MCP server {cls._name()} has no tools", "name another one")

    @classmethod
    async def _try_server(cls) -> list[Tool]:
        async with cls._make_client() as client:
            return await _list_tools(client)

    @classmethod
    def _name(cls) -> str:
        return cls.server if isinstance(cls.server, str) else " ".join(cls.server)

    @classmethod
    def _make_client(cls) -> Client:
        if isinstance(cls.server, str):
            return Client(cls.server)
        command, *arguments = cls.server
        return Client(StdioServerParameters(command=command, args=arguments, env=dict(cls.variables)))

    async def start(self) -> list[Message]:
        """Connect, list the tools, and return the prompt."""
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._connection = asyncio.create_task(self._serve(ready))
        self._client = await ready
        self.tools = await _list_tools(self._client)
        return await super().start()

    async def _serve(self, ready: "asyncio.Future[Client]") -> None:
        """Hold the connection: the task that opens it must close it."""
        try:
            async with self._make_client() as client:
                ready.set_result(client)
                await self._over.wait()
        except Exception as error:
            if ready.done():
                logger.error("the connection to the MCP server %s broke: %r", self._name(), error)
            else:
                ready.set_exception(ConnectionError(f"MCP server {self._name()}: {_reason(error)}"))

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """See :meth:`grpo.rollout.multi_turn.environment.Environment.call`."""
        assert self._client is not None
        if name not in {tool.name for tool in self.tools if isinstance(tool, Tool)}:
            raise ToolError(f"there is no tool {name}")
        try:
            result = await self._client.call_tool(name, arguments)
        except MCPError as error:
            raise ToolError(str(error)) from None
        parts = [part.text if part.type == "text" else f"[{part.type}]" for part in result.content]
        if result.is_error:
            raise ToolError("\n".join(parts))
        return "\n".join(parts)

    async def close(self) -> None:
        """Close the connection, which ends the server's process."""
        self._over.set()
        if self._connection is not None:
            await self._connection


async def _list_tools(client: Client) -> list[Tool]:
    listed, cursor = [], None
    while True:
        page = await client.list_tools(cursor=cursor)
        listed += [Tool(tool.name, tool.description or "", dict(tool.input_schema)) for tool in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            return listed


def _reason(error: BaseException) -> str:
    """Return what failed first; the client groups the errors of its tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
