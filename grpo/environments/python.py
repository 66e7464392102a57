"""An environment for mathematics with a code tool: a stateful Python interpreter without network or disk.

The tool is the built-in `python` of gpt-oss. Each rollout has its own sandbox, see :mod:`grpo.environments.sandbox`.
"""

import asyncio
from dataclasses import replace
from typing import Any, ClassVar

from grpo.environments import environment
from grpo.environments.environment import PYTHON, Message, Score, SetupError, ToolError, grade_messages
from grpo.environments.sandbox.confinement import Limits, Unconfined
from grpo.environments.sandbox.sandbox import GuestDied, Sandbox, find_escapes

INSTRUCTIONS = (
    "Solve the problem. You can run Python code with the python tool, which keeps variables between calls and has "
    "sympy and numpy, but neither network nor files. Give the final answer in \\boxed{}."
)
LOST = "the variables of earlier calls are lost"


class Environment(environment.Environment):
    """A problem with a Python interpreter; the reward is 1 for the gold answer, else 0.

    A subclass in your own file may set other limits.
    """

    tools = (PYTHON,)
    limits: ClassVar[Limits] = Limits()

    def __init__(self, prompt: str, label: str) -> None:
        super().__init__(prompt, label)
        self._sandbox: Sandbox | None = None
        self._one_call = asyncio.Lock()  # the calls of a turn share the variables, one after the other
        self._errors = self._deaths = 0

    @classmethod
    def check(cls) -> None:
        """Try to break out of a sandbox."""
        try:
            escaped = asyncio.run(find_escapes(cls.limits))
        except Unconfined as error:
            what, remedy = error.args
            raise SetupError(f"the python environment cannot confine code: {what}", remedy) from None
        if escaped:
            raise SetupError(
                f"code in the python environment can {', '.join(escaped)}", "use another machine or container profile"
            )

    async def start(self) -> list[Message]:
        return [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": self.prompt}]

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        code = arguments.get("code")
        if name != "python":
            raise ToolError(f"there is no tool {name!r}; the tool is python")
        if not isinstance(code, str):
            raise ToolError("python needs code, which must be a string")
        async with self._one_call:
            note = f"[{LOST}]\n" if self._sandbox and not self._sandbox.is_open else ""
            try:
                if self._sandbox is None or not self._sandbox.is_open:
                    self._sandbox = await Sandbox.start(self.limits)
                output = await self._sandbox.run(code)
            except GuestDied:
                raise ToolError(
                    f"the interpreter ended: the code crashed it, or used up its {self.limits.cpu_seconds} seconds"
                ) from None
            finally:
                self._deaths += bool(self._sandbox and not self._sandbox.is_open)
        self._errors += output.failed
        return note + output.text or "[no output]"

    async def score(self, messages: list[Message], ending: str) -> Score:
        score = await grade_messages(messages, ending, self.label)
        return replace(score, logs=score.logs | {"code_errors": self._errors, "interpreters_lost": self._deaths})

    async def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
