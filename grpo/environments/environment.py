"""The interface of an environment: chat messages and tools in the form of the OpenAI protocol, and never a token."""

import asyncio
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo.stack.problem import UserError
from reward.answers import grade, parse_label
from reward.beside import remedy
from reward.user_files import run_file

VERIFIERS = "verifiers:"  # begins the name of an environment of the verifiers package
BUILT_IN = {name: Path(__file__).with_name(f"{name}.py") for name in ("python", "retrieval")}
SINGLE = "single"  # the environment of single answers
_FORMS = f"name a .py file, {VERIFIERS}NAME, or one of {', '.join([*BUILT_IN, SINGLE])}"

Message = dict[str, Any]
# Returns the model's answer to messages and tools, and whether a length limit cut it
Turn = Callable[[list[Message], list[dict[str, Any]]], Coroutine[Any, Any, tuple[Message, bool]]]


class SetupError(UserError):
    """An environment that cannot be used."""


class ContextFull(Exception):
    """The conversation has no room for another turn."""


class ToolError(Exception):
    """A failed tool call whose reason the model may see: the message is what it observes."""


@dataclass(frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str
    parameters: dict[str, Any]  # JSON schema of the arguments, an object

    def as_openai(self) -> dict[str, Any]:
        """Return the tool in the form of the OpenAI protocol and of chat templates."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class BuiltInTool:
    """A tool that gpt-oss knows from its training; its chat template describes it by its name.

    A call of python has the arguments {"code": ...}, as gpt-oss writes the code alone. The calls of browser have the
    names browser.search, browser.open, and browser.find.
    """

    name: str

    def as_openai(self) -> dict[str, Any]:
        """Return the tool in the form of :meth:`Tool.as_openai`, with a type of its own."""
        return {"type": "builtin", "name": self.name}


PYTHON, BROWSER = BuiltInTool("python"), BuiltInTool("browser")


@dataclass(frozen=True)
class Score:
    """The value of a rollout.

    Attributes:
        reward: the training signal, finite; one per rollout, however many turns and rows it has.
        score: correctness, 0.0 to 1.0; evaluations count a rollout with 1 as solved.
        logs: more numbers, with the same keys for every rollout; NaN for a missing one.
    """

    reward: float
    score: float
    logs: dict[str, float] = field(default_factory=dict)


class Environment(ABC):
    """One conversation: made for one rollout, used by one task, and thrown away.

    An error in the constructor, `start`, `reply` or `score` is logged and leaves the rollout without a reward. The run
    continues unless no rollout of a batch has a reward.

    Args:
        prompt: `prompt` of a line of the data file.
        label: `label` of the same line.

    Attributes:
        sampled_tokens: how many tokens the model has sampled in this conversation; those of tools and of users do not
            count. `score` may read it, for instance to charge for them.
        drive: a coroutine function that holds the whole conversation instead of `start`, `call`, and `reply`, if it is
            not None. It gets a Turn, which raises ContextFull if there is no further one.
    """

    tools: Sequence[Tool | BuiltInTool] = ()
    sampled_tokens: int = 0
    drive: Any = None

    def __init__(self, prompt: str, label: str) -> None:
        self.prompt, self.label = prompt, label

    @classmethod
    def check(cls) -> None:
        """Check that everything the environment needs is available; called before a run. Most need nothing.

        Raises:
            SetupError: with the remedy.
        """
        return None

    async def start(self) -> list[Message]:
        """Return the first messages, at least one."""
        return [{"role": "user", "content": self.prompt}]

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Return the answer of a tool; the calls of a turn run concurrently.

        Raises:
            ToolError: for the model to read. Other errors are logged, and the model reads that the tool failed.
        """
        raise ToolError(f"there is no tool {name}")

    async def reply(self, messages: list[Message]) -> list[Message] | None:
        """Return the reply to an answer without tool calls; None if the conversation is over.

        `messages` may also be edited in place (messages removed or shortened): earlier sampled tokens then stay in a
        separate row.
        """
        return None

    @abstractmethod
    async def score(self, messages: list[Message], ending: str) -> Score:
        """Return the value of the conversation.

        Args:
            ending: "done", or the limit that ended it: "turns", "time" or "length".
        """

    async def close(self) -> None:
        """Release what the conversation used. Called once, last, whatever happened; most need nothing."""
        return None


class SingleAnswer(Environment):
    """A prompt, one turn, and the grader's verdict, as in a run without an environment or a judge."""

    async def score(self, messages: list[Message], ending: str) -> Score:
        """Return whether the gold answer is in a message of the final channel."""
        is_final = messages[-1].get("channel") == "final"
        return await grade_messages(messages if is_final else messages[:-1], ending, self.label)


async def grade_messages(messages: list[Message], ending: str, label: str) -> Score:
    """Return 1 for the gold answer in the last message, else 0. A label is that of single answers."""
    last = messages[-1]
    text = last.get("content") or "" if last["role"] == "assistant" and not last.get("tool_calls") else ""
    # The grader reads harmony responses: only a final message has an answer, up to a marker inside it.
    response = f"<|channel|>final<|message|>{text}" + ("<|return|>" if ending == "done" else "")
    prompt = next((str(message.get("content")) for message in messages if message["role"] == "user"), None)
    result = await asyncio.to_thread(grade, response, parse_label(label).answer, prompt)
    correct = float(result.correct)
    return Score(correct, correct, {"correct": correct, "answered": float(result.answer is not None)})


def load(name: str) -> type[Environment]:
    """Return the class ``Environment`` of a .py file, of one of our environments, or of one of the verifiers package.

    Raises:
        SetupError: if it is missing.
    """
    if name.startswith(VERIFIERS):
        if not importlib.util.find_spec("verifiers"):
            raise SetupError(
                f"ENVIRONMENT {name} needs the verifiers package",
                "run: uv pip install --no-deps -r requirements/verifiers.txt",
            )
        from grpo.environments.verifiers_environment import environment_of

        return environment_of(name.removeprefix(VERIFIERS))
    if name == SINGLE:
        return SingleAnswer
    path = BUILT_IN.get(name, Path(name))
    if path.suffix != ".py" or not path.is_file():
        raise SetupError(f"ENVIRONMENT {name} does not exist", _FORMS)
    try:
        module = run_file(path, f"environment_{path.stem}")
    except (Exception, SystemExit) as error:
        raise SetupError(
            f"ENVIRONMENT {path} cannot be imported ({type(error).__name__}: {error})",
            f"{remedy(error)}; import from grpo.environments what it extends",
        ) from error
    kind = getattr(module, "Environment", None)
    if not (isinstance(kind, type) and issubclass(kind, Environment)) or kind is Environment:
        raise SetupError(
            f"{path} has no class Environment that extends grpo.environments.environment.Environment",
            "give the class this name and this base",
        )
    return kind
