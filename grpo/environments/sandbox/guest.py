"""The interpreter inside a sandbox: runs code, one call after the other, and keeps the variables.

`python -s -P guest.py LIMITS`, with the limits as JSON and a socket as standard input. It first says why it cannot be
confined, as JSON, or [].
"""

import ast
import contextlib
import io
import json
import linecache
import os
import random
import struct
import sys
import traceback
from pathlib import Path
from typing import Any

MOST_CHARS = 1_000_000  # what one call may print, and of an error
LENGTH = struct.Struct("!Q")  # before each message


def main() -> None:
    """Confine this process for good, and serve the socket."""
    sys.path.append(root := str(Path(__file__).resolve().parents[3]))
    from grpo.environments.sandbox import confinement

    sys.path.remove(root)
    confinement.die_with_parent()
    os.nice(5)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # out of memory, the kernel ends guests first
    import numpy  # now, so that its random numbers have a seed

    numpy.random.seed(0)
    limits, sys.argv = confinement.Limits(**json.loads(sys.argv[1])), [""]
    channel, null = os.dup2(0, 3), os.open("/dev/null", os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    os.close(null)
    try:
        confinement.confine(limits)
    except confinement.Unconfined as error:
        os.write(channel, json.dumps(error.args).encode())
        return
    os.write(channel, b"[]")
    serve(channel)


class _Output(io.StringIO):
    """Ends code that prints without end."""

    def write(self, text: str) -> int:
        if self.tell() + len(text) > MOST_CHARS:
            raise RuntimeError(f"the code printed more than {MOST_CHARS} characters")
        return super().write(text)


def serve(channel: int) -> None:
    """Run each code that comes through a socket, until it is closed. A reply begins with 1 if the code failed, or 0."""
    random.seed(0)  # equal code gives equal output in every rollout
    names: dict[str, Any] = {"__name__": "__main__"}
    number = 0
    with open(channel, "rb", closefd=False) as asked, open(channel, "wb", closefd=False) as answers:
        while head := asked.read(LENGTH.size):
            number += 1
            code = asked.read(*LENGTH.unpack(head)).decode("utf-8", "surrogatepass")
            text, failed = run(code, f"<call {number}>", names)
            reply = (b"1" if failed else b"0") + text.encode("utf-8", "surrogatepass")
            answers.write(LENGTH.pack(len(reply)) + reply)
            answers.flush()


def run(code: str, file: str, names: dict[str, Any]) -> tuple[str, bool]:
    """Return what code printed, with the value of a last line that is an expression, and whether it failed."""
    output = _Output()
    linecache.cache[file] = (len(code), None, [f"{line}\n" for line in code.splitlines()], file)  # for tracebacks
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            _execute(code, file, names)
        except SystemExit:
            pass  # exit() ends the code; the variables stay
        except BaseException as error:
            frames = error.__traceback__
            for _ in range(2):  # without those of this file
                frames = frames and frames.tb_next
            text = "".join(traceback.format_exception(type(error), error, frames))
            return output.getvalue() + text[:MOST_CHARS], True
    return output.getvalue(), False


def _execute(code: str, file: str, names: dict[str, Any]) -> None:
    tree: ast.Module = compile(code, file, "exec", flags=ast.PyCF_ONLY_AST + 0)  # a traceback would show ast.parse
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, file, "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), file, "eval"), names)
        if value is not None:
            print(repr(value))


if __name__ == "__main__":
    main()
