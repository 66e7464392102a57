"""An environment for questions about a library: `search` returns excerpts, `read` a document.

The library is a folder of texts (``--library``, .txt and .md), or a .jsonl file with `title` and `text` in each line.
The index is SQLite's FTS5 (BM25 over stemmed words), in memory, built once in each engine's process.
"""

import asyncio
import functools
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo.environments import environment
from grpo.environments.environment import Message, Score, SetupError, Tool, ToolError, grade_messages
from grpo.stack.json_files import numbered_rows, read_bytes

VARIABLE = "GRPO_LIBRARY"
MAX_HITS = 10  # per query
MAX_QUERIES = 10  # per search
MAX_WORDS = 64  # per query: FTS5 takes time for each of them in each document, and searches run one by one
SECONDS = 5.0  # after which a search or a read is interrupted, so that others need not wait
_INSTRUCTIONS = 1000  # of SQLite between two checks of the time
EXCERPT_WORDS = 24
PAGE = 2000  # characters that one `read` returns

_QUERY = {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
INSTRUCTIONS = (
    "Answer the question from the library. Search it first; read a document where an excerpt does not say enough. "
    "Give the final answer in \\boxed{}."
)


class Library:
    """A thread-safe index of documents.

    Args:
        documents: title and text of each; they are numbered in order.
        seconds: after which :meth:`search` and :meth:`read` raise ToolError.
    """

    def __init__(self, documents: Iterator[tuple[str, str]], seconds: float = SECONDS) -> None:
        self._lock, self._seconds = threading.Lock(), seconds
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute("CREATE VIRTUAL TABLE library USING fts5(title, text, tokenize='porter unicode61')")
        self._database.executemany("INSERT INTO library(title, text) VALUES (?, ?)", documents)

    def search(self, query: str, count: int) -> list[tuple[int, str, str]]:
        """Return number, title, and excerpt of the best matches for any of the query's first MAX_WORDS words."""
        words = list({word.casefold(): word for word in re.findall(r"\w+", query)}.values())[:MAX_WORDS]
        if not words:
            return []
        return self._ask(
            "SELECT rowid, title, snippet(library, 1, '', '', ' ... ', ?) FROM library WHERE library MATCH ? "
            "ORDER BY bm25(library, 2.0, 1.0), rowid LIMIT ?",
            EXCERPT_WORDS,
            " OR ".join(f'"{word}"' for word in words),
            count,
        )

    def read(self, number: int) -> tuple[str, str] | None:
        """Return title and text of a document; None if the number is unknown."""
        rows = self._ask("SELECT title, text FROM library WHERE rowid = ?", number)
        return rows[0] if rows else None

    def _ask(self, sql: str, *values: Any) -> list[Any]:
        with self._lock:  # one connection: SQLite would refuse two threads at once
            end = time.monotonic() + self._seconds
            self._database.set_progress_handler(lambda: time.monotonic() > end, _INSTRUCTIONS)
            try:
                return self._database.execute(sql, values).fetchall()
            except sqlite3.OperationalError as error:
                if str(error) != "interrupted":
                    raise
                raise ToolError(f"the library gave no answer in {self._seconds:g} s; use fewer words") from None


def read_documents(path: Path) -> Iterator[tuple[str, str]]:
    """Yield title and text of each document. Raises SetupError for an invalid library path."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.suffix in (".txt", ".md") and file.is_file():
                yield file.stem, read_bytes(file).decode(errors="replace")
        return
    if path.suffix != ".jsonl" or not path.is_file():
        raise SetupError(
            f"--library {path} is neither a folder nor a .jsonl file",
            "name a folder of .txt and .md files, or a .jsonl file",
        )
    for number, row in numbered_rows(path):
        if not isinstance(row, dict) or not {"title", "text"} <= row.keys():
            raise SetupError(f"{path}, line {number} is not JSON with title and text", "correct the line")
        yield str(row["title"]), str(row["text"])


_building = threading.Lock()


def library(path: str) -> Library:
    """Return the index of a library, built at the process's first call."""
    with _building:
        return _build(path)


@functools.cache
def _build(path: str) -> Library:
    return Library(read_documents(Path(path)))


class Environment(environment.Environment):
    """A question about the library; the reward is 1 for the gold answer, else 0."""

    tools = (
        Tool(
            "search",
            "Search the library. Gives number, title and an excerpt of the documents that fit best each query.",
            {
                "type": "object",
                "properties": {"query": _QUERY, "count": {"type": "integer", "minimum": 1}},
                "required": ["query"],
            },
        ),
        Tool(
            "read",
            f"Read a document by its number, {PAGE} characters from an offset on.",
            {
                "type": "object",
                "properties": {"document": {"type": "integer"}, "offset": {"type": "integer", "minimum": 0}},
                "required": ["document"],
            },
        ),
    )

    @classmethod
    def check(cls) -> None:
        path = os.environ.get(VARIABLE, "")
        if not path:
            raise SetupError("the retrieval environment has no library", "set --library to a folder or .jsonl file")
        if next(read_documents(Path(path)), None) is None:
            raise SetupError(
                f"--library {path} contains no documents", "name a folder of .txt and .md files, or a .jsonl file"
            )

    async def start(self) -> list[Message]:
        return [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": self.prompt}]

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        run = {"search": _search, "read": _read}.get(name)
        if run is None:
            raise ToolError(f"there is no tool {name!r}; the tools are search and read")
        return await asyncio.to_thread(run, os.environ[VARIABLE], arguments)

    async def score(self, messages: list[Message], ending: str) -> Score:
        return await grade_messages(messages, ending, self.label)


def _search(path: str, arguments: dict[str, Any]) -> str:
    given, count = arguments.get("query"), arguments.get("count", 5)
    queries = given if isinstance(given, list) else [given]
    if not 1 <= len(queries) <= MAX_QUERIES or not all(isinstance(query, str) for query in queries):
        raise ToolError(f"search needs a query, which must be a string, or a list of up to {MAX_QUERIES}")
    if type(count) is not int or not 1 <= count <= MAX_HITS:
        raise ToolError(f"count must be a whole number from 1 to {MAX_HITS}")
    found: list[str] = []
    for query in map(str, queries):
        hits = library(path).search(query, count)
        text = "\n".join(f"[{number}] {title}: {excerpt}" for number, title, excerpt in hits) or "nothing was found"
        found.append(text if query == given else f"{query}\n{text}")
    return "\n\n".join(found)


def _read(path: str, arguments: dict[str, Any]) -> str:
    number, offset = arguments.get("document"), arguments.get("offset", 0)
    if type(number) is not int or type(offset) is not int or offset < 0:
        raise ToolError("document must be a whole number, and offset 0 or more")
    document = library(path).read(number) if abs(number) < 2**63 else None
    if document is None:
        raise ToolError(f"there is no document {number}")
    title, text = document
    more = f"\n[{len(text) - offset - PAGE} characters more]" if offset + PAGE < len(text) else ""
    return f"{title}\n{text[offset : offset + PAGE]}{more}"
