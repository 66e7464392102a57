"""The thinking budget of a run, passed by a variable from the trainer's flags to the engines' executor."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo.environments.settings import has_environment
from grpo.rollout.thinking import Budget, Delimiter, delimiter
from grpo.stack.problem import UserError
from grpo.stack.upstream.arguments import Arguments
from grpo.stack.upstream.tokenizer import Tokenizer

_VARIABLE = "GRPO_THINKING"
EXECUTOR = Path(__file__).with_name("budget_executor.py")


@dataclass(frozen=True)
class ThinkingSettings:
    """The settings of the executor.

    Attributes:
        mark: names the delimiter, see :func:`grpo.rollout.thinking.delimiter`.
        reward: OpenRLHF's ``--remote_rm_url``; "" if not set.
    """

    budget: Budget
    mark: str
    reward: str

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "ThinkingSettings":
        """Return the settings that :func:`pass_to_engines` wrote.

        Raises:
            UserError: if they are missing.
        """
        if _VARIABLE not in environ:
            raise UserError(f"{_VARIABLE} is not set", "use --thinking_budget, which sets the executor")
        thinking, answer, mark, reward = json.loads(environ[_VARIABLE])
        return cls(Budget(thinking, answer), mark, reward)

    def delimiter(self, tokenizer: Tokenizer) -> Delimiter:
        """Return the delimiter as a tokenizer encodes it."""
        return delimiter(self.mark, lambda text: tokenizer.encode(text, add_special_tokens=False))


def read_given(environ: Mapping[str, str]) -> ThinkingSettings | None:
    """Return the settings that :func:`pass_to_engines` wrote; None if the run has no thinking budget."""
    return ThinkingSettings.from_environment(environ) if _VARIABLE in environ else None


def environment(thinking: int, answer: int, mark: str, reward: str) -> dict[str, str]:
    """Return the variable from which :meth:`ThinkingSettings.from_environment` reads these values."""
    return {_VARIABLE: json.dumps([thinking, answer, mark, reward])}


def pass_to_engines(args: Arguments) -> None:
    """Let the engines roll out with a thinking budget if ``--thinking_budget`` is given. Called before Ray starts.

    OpenRLHF ignores ``--remote_rm_url`` if an executor is named, and passes no arguments to it. An environment has its
    own executor, which reads the same settings.
    """
    if args.thinking_budget is None or args.answer_budget is None or args.thinking_delimiter is None:
        return
    os.environ.update(
        environment(args.thinking_budget, args.answer_budget, args.thinking_delimiter, args.remote_rm_url or "")
    )
    if not has_environment(args):
        args.agent_func_path = str(EXECUTOR)
