"""The settings of rollouts in an environment, from the variables that train_grpo.sh exports."""

from collections.abc import Mapping
from dataclasses import dataclass

from grpo.multi_turn.conversation import Limits
from grpo.multi_turn.environment import EnvironmentError

PREFIX = "GRPO_"
VARIABLES = ("ENVIRONMENT", "TURN_LIMIT", "ROLLOUT_SECONDS", "TOOL_SECONDS", "MAX_BRANCHES")


@dataclass(frozen=True)
class Settings:
    """What rollouts are.

    Attributes:
        environment: a name of ours, or a .py file.
        max_samples: of one rollout that are trained on: they are in the actor's memory at once.
    """

    environment: str
    limits: Limits
    max_samples: int

    @classmethod
    def from_variables(cls, environ: Mapping[str, str]) -> "Settings":
        """Read GRPO_ENVIRONMENT and the limits.

        Raises:
            EnvironmentError: for a value that cannot be, with the remedy.
        """
        found = {name: environ[PREFIX + name] for name in VARIABLES if environ.get(PREFIX + name)}
        if "ENVIRONMENT" not in found:
            raise EnvironmentError("no environment: set ENVIRONMENT to a name or to a .py file")
        branches = found.get("MAX_BRANCHES", "3")
        if not branches.isdecimal():
            raise EnvironmentError(f"MAX_BRANCHES is {branches!r}: give 0 or more")
        return cls(found["ENVIRONMENT"], Limits.from_variables(found), int(branches) + 1)
