"""An MCP server over stdio with a notebook, which a process keeps for as long as it lives."""

import os
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("notebook", log_level="CRITICAL")
notes: list[str] = []


@server.tool()
def note(text: str) -> str:
    """Write a note."""
    notes.append(text)
    return f"{len(notes)} notes"


@server.tool()
def read(number: int) -> str:
    """Read a note, from 1."""
    if not 0 < number <= len(notes):
        raise ToolError(f"there is no note {number}")
    return notes[number - 1]


@server.tool()
def leave() -> str:
    """End the server."""
    os._exit(3)


@server.tool()
def variables() -> str:
    """List the names of the process's variables."""
    return " ".join(sorted(os.environ))


if __name__ == "__main__":
    Path(sys.argv[1], str(os.getpid())).touch()
    server.run("stdio")
