"""A command line: its parser, and what it prints, which is text without control over the terminal."""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
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


def run(main: Callable[[], int], draws: bool = False) -> NoReturn:
    """Run a command line to its exit code. A reader that stops early (`| head`) ends it without a traceback.

    Not for a command that writes files in several parts, starts processes or holds connections. It ends at once, as
    `cat` does, and a connection closed by the other side would end it too.

    Args:
        draws: the command controls the terminal itself, and calls :func:`printable`.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    print_plainly(draws)
    sys.exit(main())


def print_result(text: str) -> None:
    """Print what a command found, after its last connection. A reader that stops early ends it without a traceback."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    print(text, flush=True)
    signal.signal(signal.SIGPIPE, before)


def printable(text: str) -> str:
    """Return a text with "?" for what a terminal would obey: escapes, other controls, and turned writing directions.

    Lines and tabs stay.
    """
    return "".join(character if character.isprintable() or character in "\n\t" else "?" for character in text)


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
