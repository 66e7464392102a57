"""A command line: its parser, and what it prints, which is text without control over the terminal."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from grpo.stack.problem import UserError


def check_counts(options: argparse.Namespace, names: Sequence[str]) -> None:
    """Refuse options, None aside, that are below 1; raises UserError for the first one."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} is {value:g}", "give 1 or more")


def parser(module: str, documentation: str | None) -> argparse.ArgumentParser:
    """Return the parser of a module's command line, whose help begins with the module's documentation."""
    return argparse.ArgumentParser(
        allow_abbrev=False,
        prog=f"python -m {module}",
        description=documentation,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def run(main: Callable[[], int], draws: bool = False, outlives: bool = False) -> NoReturn:
    """Run a command line to its exit code. A reader that stops early (`| head`) ends it at once, as it ends `cat`.

    Args:
        draws: the command controls the terminal itself, and calls :func:`printable`.
        outlives: the command goes on without its reader, since it writes files, starts processes, or holds connections.
    """
    if not outlives:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    print_plainly(draws or outlives)
    if outlives:
        sys.stdout = _Outliving(sys.stdout)
    sys.exit(main())


def printable(text: str) -> str:
    """Return a text with "?" for what a terminal would obey: escapes, other controls, and turned writing directions.

    Lines and tabs stay.
    """
    return "".join(character if character.isprintable() or character in "\n\t" else "?" for character in text)


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun: "1 rank", "2 ranks", "6,400 calls"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def print_plainly(draws: bool = False) -> None:
    """Let this process print only :func:`printable` text: names, paths, and logs may come from outside."""
    sys.stderr = _Plain(sys.stderr)
    if not draws:
        sys.stdout = _Plain(sys.stdout)


class _Plain:
    """A stream that makes its text printable."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._stream.write(printable(text))


class _Outliving(_Plain):
    """One that drops its text once nobody reads it."""

    def write(self, text: str) -> int:
        with self._without_reader():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._without_reader():
            self._stream.flush()

    @contextmanager
    def _without_reader(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), self._stream.fileno())
