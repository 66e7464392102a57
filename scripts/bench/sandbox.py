"""Concurrent rollouts that run code: an interpreter started for each, and ours, forked and confined.

Every rollout is a whole conversation in the environment `python`, with a policy that answers at once: what remains is
the time of the environment. The stock way starts an interpreter per rollout, which is not confined, and gives it the
same code. Both must return the same answers.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from grpo.rollout.multi_turn.conversation import play
from grpo.rollout.multi_turn.environment import Environment, Message, load
from grpo.rollout.multi_turn.settings import RolloutLimits
from grpo.stack.problem import UserError
from scripts.bench.harness import Result
from scripts.bench.machine import Copy

CALLS = (
    "import sympy\nx = sympy.symbols('x')\nroots = sympy.solve(x**2 - 5*x + 6)",
    "sum(roots)",
    "sum(int(digit) for digit in str(2**1000))",
    "len([n for n in range(2, 5000) if all(n % d for d in range(2, int(n**0.5) + 1))])",
)
ANSWERS = ["", "5\n", "1366\n", "669\n"]
# What tools often do: exec in an interpreter of its own, JSON lines in and out.
STOCK = """
import contextlib, io, json, sys
names = {}
for line in sys.stdin:
    lines, output = json.loads(line).split("\\n"), io.StringIO()
    with contextlib.redirect_stdout(output):
        exec("\\n".join(lines[:-1]), names)
        try:
            value = eval(lines[-1], names)
            print(value)
        except SyntaxError:
            exec(lines[-1], names)
    print(json.dumps(output.getvalue()), flush=True)
"""


class Caller:
    """A policy that makes the calls one after the other and answers."""

    tokens = 0

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def respond(self, messages: list[Message], tools: list[dict[str, Any]]) -> tuple[Message, bool]:
        """Return the next call, or the answer."""
        number = sum(message["role"] == "tool" for message in messages)
        if number == len(CALLS):
            self.heard = [message["content"] for message in messages if message["role"] == "tool"]
            return {"role": "assistant", "content": "\\boxed{669}"}, False
        call = {"name": "python", "arguments": json.dumps({"code": CALLS[number]})}
        called = [{"id": str(number), "type": "function", "function": call}]
        return {"role": "assistant", "content": "", "tool_calls": called}, False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rollouts", type=int, default=64, help="concurrent rollouts (default: 64)")
    parser.add_argument("--repeat", type=int, default=3, help="timed rounds; the best counts (default: 3)")


def run(options: argparse.Namespace, copy: Copy) -> Result:
    del copy
    if min(options.rollouts, options.repeat) < 1:
        raise UserError("an option is out of range", "--rollouts and --repeat must be at least 1")
    begin = time.perf_counter()
    asyncio.run(_ours(load("python")))
    first = time.perf_counter() - begin
    best: dict[str, list[float]] = {}
    ways: dict[str, Callable[[], Awaitable[None]]] = {"stock": _stock, "ours": lambda: _ours(load("python"))}
    for _ in range(options.repeat):
        for name, way in ways.items():
            seconds = asyncio.run(_together(way, options.rollouts))
            best[name] = min(best.get(name, seconds), seconds, key=max)
    return Result(
        what=f"{options.rollouts} concurrent rollouts of {len(CALLS)} calls, until the last one ends",
        unit="s",
        stock=max(best["stock"]),
        ours=max(best["ours"]),
        higher_is_better=False,
        details={
            "first_rollout_s": first,
            **{f"median_rollout_{name}_s": statistics.median(seconds) for name, seconds in best.items()},
            **{f"per_rollout_{name}_ms": 1000 * max(seconds) / options.rollouts for name, seconds in best.items()},
        },
    )


async def _together(way: Callable[[], Awaitable[None]], count: int) -> list[float]:
    """Return the seconds of each of several concurrent rollouts."""

    async def timed() -> float:
        begin = time.perf_counter()
        await way()
        return time.perf_counter() - begin

    return await asyncio.gather(*(timed() for _ in range(count)))


async def _ours(kind: type[Environment]) -> None:
    policy = Caller()
    outcome, score = await play(lambda: kind("", "669"), policy, RolloutLimits(8, 300, 300, 300))
    _compare([text.replace("[no output]", "") for text in policy.heard])
    if score.reward != 1 or outcome.ending != "done":
        raise RuntimeError(f"a rollout ended by {outcome.ending}: {outcome.fault}")


async def _stock() -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", STOCK, stdin=pipe, stdout=pipe)
    assert process.stdin and process.stdout
    heard = []
    for code in CALLS:
        process.stdin.write(json.dumps(code).encode() + b"\n")
        heard.append(json.loads(await process.stdout.readline()))
    process.stdin.close()
    await process.wait()
    _compare(heard)


def _compare(heard: list[str]) -> None:
    if heard != ANSWERS:
        raise RuntimeError(f"the interpreter returned {heard}")
