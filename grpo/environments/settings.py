"""The settings of rollouts in an environment, from the variables that train_grpo.sh exports."""

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo.environments.environment import SetupError
from grpo.environments.mixture import Mixture
from grpo.flags.ours import ENVIRONMENT_FLAGS, make_environment_parser
from grpo.flags.upstream import make_strict
from grpo.stack.upstream import Arguments

AGENT = Path(__file__).parents[1] / "rollout" / "agent.py"  # the value of --agent_func_path
PREFIX = "GRPO_"
VARIABLES = tuple(flag.upper() for flag in ENVIRONMENT_FLAGS)


def has_environment(args: Arguments) -> bool:
    """Return whether the trainer's flags ask for conversations in an environment, which gives the reward."""
    return args.agent_func_path is not None and Path(args.agent_func_path).resolve() == AGENT.resolve()


def variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of an environment without their prefix; {} without an environment."""
    environ = os.environ if environ is None else environ
    given = {name: environ[PREFIX + name] for name in VARIABLES if environ.get(PREFIX + name)}
    return given if "ENVIRONMENT" in given else {}


def environments_by_prompt(args: Arguments) -> dict[str, str]:
    """Return the environment of each prompt of the run's data; {} without several environments.

    Raises:
        SetupError: for data or settings that do not fit.
    """
    given = variables()
    if not given or not has_environment(args):
        return {}
    files = tuple(file for file in (args.prompt_data, args.eval_dataset) if file)
    return _assign_environments(files, args.input_key, given["ENVIRONMENT"], given.get("ENVIRONMENT_WEIGHTS", ""))


@functools.cache
def _assign_environments(files: Sequence[str], key: str, environment: str, weights: str) -> dict[str, str]:
    mixture = Mixture.from_variables({"ENVIRONMENT": environment, "ENVIRONMENT_WEIGHTS": weights})
    if not mixture.is_several:
        return {}
    return {prompt: name for file in files for prompt, name in mixture.assign_file(Path(file), key).items()}


@dataclass(frozen=True)
class RolloutLimits:
    """The limits that end a conversation early.

    Attributes:
        turns: of the policy.
        seconds: for the whole conversation; a turn in progress is aborted.
        tool_seconds: for one tool call; the model observes that it took too long.
        score_seconds: for the score; a rollout beyond it has no reward.
    """

    turns: int
    seconds: float
    tool_seconds: float
    score_seconds: float


@dataclass(frozen=True)
class EnvironmentSettings:
    """The settings of rollouts.

    Attributes:
        mixture: the environments.
        max_rows: trained rows per rollout; the actor holds them in memory at once.
    """

    mixture: Mixture
    limits: RolloutLimits
    max_rows: int

    @classmethod
    def from_variables(cls, environ: Mapping[str, str]) -> "EnvironmentSettings":
        """Read GRPO_ENVIRONMENT and the limits.

        Raises:
            UserError: without an environment, or for an invalid value.
        """
        given = variables(environ)
        if not given:
            raise SetupError("ENVIRONMENT is missing", "set ENVIRONMENT to a name or to a .py file")
        words = [f"--{name.lower()}={value}" for name, value in given.items()]
        read = make_strict(make_environment_parser()).parse_args(words)
        limits = RolloutLimits(read.turn_limit, read.rollout_seconds, read.tool_seconds, read.score_seconds)
        return cls(Mixture.from_variables(given), limits, read.max_branches + 1)
