"""The settings of rollouts in an environment, from the variables that train_grpo.sh exports."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo.rollout.multi_turn.conversation import Limits
from grpo.rollout.multi_turn.environment import SetupError

AGENT = Path(__file__).with_name("agent.py")  # the value of --agent_func_path
PREFIX = "GRPO_"
VARIABLES = ("ENVIRONMENT", "LIBRARY", "TURN_LIMIT", "ROLLOUT_SECONDS", "TOOL_SECONDS", "MAX_BRANCHES")


def has_environment(args: argparse.Namespace) -> bool:
    """Return whether the trainer's flags ask for conversations in an environment, which gives the reward."""
    return bool(args.agent_func_path) and Path(args.agent_func_path).resolve() == AGENT.resolve()


def variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of an environment without their prefix; {} without an environment."""
    environ = os.environ if environ is None else environ
    found = {name: environ[PREFIX + name] for name in VARIABLES if environ.get(PREFIX + name)}
    return found if "ENVIRONMENT" in found else {}


@dataclass(frozen=True)
class Settings:
    """The settings of rollouts.

    Attributes:
        environment: the name of one of ours, or a .py file.
        max_samples: trained samples per rollout; the actor holds them in memory at once.
    """

    environment: str
    limits: Limits
    max_samples: int

    @classmethod
    def from_variables(cls, environ: Mapping[str, str]) -> "Settings":
        """Read GRPO_ENVIRONMENT and the limits.

        Raises:
            SetupError: for an invalid value, with the remedy.
        """
        found = variables(environ)
        if not found:
            raise SetupError("no environment", "set ENVIRONMENT to a name or to a .py file")
        branches = found.get("MAX_BRANCHES", "3")
        if not branches.isdecimal():
            raise SetupError(f"MAX_BRANCHES is {branches!r}", "give 0 or more")
        return cls(found["ENVIRONMENT"], Limits.from_variables(found), int(branches) + 1)
