"""The thinking budget of a run, passed by variables from the trainer's flags to the engines' executor."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo.rollout.multi_turn.settings import has_environment
from grpo.rollout.thinking import Budget
from grpo.stack.problem import UserError
from grpo.stack.upstream.arguments import Arguments

_VARIABLES = {
    "thinking": "GRPO_THINKING_BUDGET",
    "answer": "GRPO_ANSWER_BUDGET",
    "delimiter": "GRPO_THINKING_DELIMITER",
    "reward": "GRPO_THINKING_REWARD",
}
EXECUTOR = Path(__file__).with_name("budget_executor.py")


@dataclass(frozen=True)
class ThinkingSettings:
    """The settings of the executor.

    Attributes:
        delimiter: see :func:`grpo.rollout.thinking.delimiter`.
        reward: OpenRLHF's ``--remote_rm_url``; "" if not set.
    """

    budget: Budget
    delimiter: str
    reward: str

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "ThinkingSettings":
        """Return the settings that :func:`hand_on` wrote.

        Raises:
            UserError: if they are missing.
        """
        missing = [name for name in _VARIABLES.values() if name not in environ]
        if missing:
            raise UserError(f"{', '.join(missing)} not set", "use --thinking_budget, which sets the executor")
        thinking, answer, delimiter, reward = (environ[name] for name in _VARIABLES.values())
        return cls(Budget(int(thinking), int(answer)), delimiter, reward)


def given(environ: Mapping[str, str]) -> ThinkingSettings | None:
    """Return the settings that :func:`hand_on` wrote; None if the run has no thinking budget."""
    return ThinkingSettings.from_environment(environ) if _VARIABLES["thinking"] in environ else None


def environment(thinking: int, answer: int, delimiter: str, reward: str) -> dict[str, str]:
    """Return the variables from which :meth:`ThinkingSettings.from_environment` reads these values."""
    return dict(zip(_VARIABLES.values(), map(str, (thinking, answer, delimiter, reward)), strict=True))


def hand_on(args: Arguments) -> None:
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
