"""The settings of rollouts in an environment, from the variables that train_grpo.sh exports."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo.rollout.multi_turn.conversation import RolloutLimits
from grpo.rollout.multi_turn.environment import SetupError
from grpo.stack.upstream.arguments import Arguments

AGENT = Path(__file__).with_name("agent.py")  # the value of --agent_func_path
PREFIX = "GRPO_"
VARIABLES = ("ENVIRONMENT", "LIBRARY", "TURN_LIMIT", "ROLLOUT_SECONDS", "TOOL_SECONDS", "MAX_BRANCHES")


def has_environment(args: Arguments) -> bool:
    """Return whether the trainer's flags ask for conversations in an environment, which gives the reward."""
    return args.agent_func_path is not None and Path(args.agent_func_path).resolve() == AGENT.resolve()


def variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of an environment without their prefix; {} without an environment."""
    environ = os.environ if environ is None else environ
    given = {name: environ[PREFIX + name] for name in VARIABLES if environ.get(PREFIX + name)}
    return given if "ENVIRONMENT" in given else {}


@dataclass(frozen=True)
class EnvironmentSettings:
    """The settings of rollouts.

    Attributes:
        environment: the name of one of ours, or a .py file.
        max_samples: trained samples per rollout; the actor holds them in memory at once.
    """

    environment: str
    limits: RolloutLimits
    max_samples: int

    @classmethod
    def from_variables(cls, environ: Mapping[str, str]) -> "EnvironmentSettings":
        """Read GRPO_ENVIRONMENT and the limits.

        Raises:
            SetupError: for an invalid value, with the remedy.
        """
        given = variables(environ)
        if not given:
            raise SetupError("ENVIRONMENT is missing", "set ENVIRONMENT to a name or to a .py file")
        branches = given.get("MAX_BRANCHES", "3")
        if not branches.isdecimal():
            raise SetupError(f"MAX_BRANCHES is {branches!r}", "give 0 or more")
        return cls(given["ENVIRONMENT"], RolloutLimits.from_variables(given), int(branches) + 1)
