"""The settings of rollouts in environments, from the variables that train_grpo.sh exports.

A run may have several environments. A line of a data file can name its own in the field `environment`. The weights
divide the other problems, in the order of their prompts' hashes: the shares are exact, and a problem keeps its
environment in every step.
"""

import functools
import hashlib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.environments.environment import VERIFIERS, SetupError
from grpo.flags.ours import ENVIRONMENT_FLAGS, make_environment_parser
from grpo.flags.upstream import make_strict
from grpo.stack.json_files import numbered_rows
from grpo.stack.upstream import Arguments

AGENT = Path(__file__).parents[1] / "rollout" / "agent.py"  # the value of --agent_func_path
PREFIX = "GRPO_"
VARIABLES = tuple(flag.upper() for flag in ENVIRONMENT_FLAGS)
FIELD = "environment"  # of a line of a data file, and of a record of a rollout
KEY = "environment"  # in the sampling parameters' extra_args


@dataclass(frozen=True)
class Member:
    """One environment of a run.

    Attributes:
        name: as in data files and metric names: a file's name without .py, or the NAME of verifiers:NAME.
        source: as in ENVIRONMENT, for :func:`grpo.environments.environment.load`.
        weight: of the problems that name no environment; the weights of a mixture add up to 1.
    """

    name: str
    source: str
    weight: float


@dataclass(frozen=True)
class Mixture:
    """The environments of a run, at least one."""

    members: Sequence[Member]

    @classmethod
    def from_variables(cls, given: Mapping[str, str]) -> "Mixture":
        """Read ENVIRONMENT and --environment_weights.

        Raises:
            SetupError: for two environments of one name, or weights that do not match.
        """
        text = given["ENVIRONMENT"]
        sources = [text] if Path(text).is_file() else text.split()
        weights = _weights(given.get("ENVIRONMENT_WEIGHTS", ""), len(sources))
        members = [Member(get_name(source), source, weight) for source, weight in zip(sources, weights, strict=True)]
        if twice := [each.name for each in members if [one.name for one in members].count(each.name) > 1]:
            raise SetupError(f"ENVIRONMENT has {twice[0]} twice", "rename one of the files, or remove one of them")
        return cls(members)

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.members]

    @property
    def is_several(self) -> bool:
        return len(self.members) > 1

    def assign_file(self, file: Path, key: str = "prompt") -> dict[str, str]:
        """Return the environment of each prompt of a data file, whose prompts stand in the field ``key``.

        Raises:
            SetupError: for a line that names an environment that the run does not have.
        """
        assigned: dict[str, str] = {}
        shared = []
        for number, row in numbered_rows(file):
            if not isinstance(row, dict):
                continue  # another check reports it
            prompt, named = str(row.get(key)), row.get(FIELD)
            if named is None:
                shared.append(prompt)
            elif named in self.names:
                assigned[prompt] = named
            else:
                raise SetupError(
                    f"{file}, line {number} is for the environment {named!r}, but ENVIRONMENT has "
                    f"{', '.join(self.names)}",
                    f"correct the field {FIELD!r}, or add it to ENVIRONMENT",
                )
        return assigned | self._share_out(shared)

    def _share_out(self, prompts: Iterable[str]) -> dict[str, str]:
        order = sorted(set(prompts), key=lambda prompt: hashlib.sha256(prompt.encode()).digest())
        assigned: dict[str, str] = {}
        begin, sum_of_weights = 0, 0.0
        for member in self.members:
            sum_of_weights += member.weight
            end = round(sum_of_weights * len(order))
            assigned |= dict.fromkeys(order[begin:end], member.name)
            begin = end
        return assigned

    def logs(self, name: str, response: Mapping[str, Any]) -> dict[str, float]:
        """Return the numbers by environment of one rollout in the environment ``name``; {} for a single environment.

        A rollout has no numbers for other environments, so a mean over the batch is a mean over this environment.
        """
        if not self.is_several:
            return {}
        numbers = {"reward": response["reward"], "score": response["scores"], "turns": response["extra_logs"]["turns"]}
        return {
            **{f"environment_share.{member.name}": float(member.name == name) for member in self.members},
            **{f"environment_{key}.{name}": float(value) for key, value in numbers.items()},
            f"environment_errors.{name}": response["extra_logs"]["ended_by_error"],
        }


def get_name(source: str) -> str:
    """Return the short name of an environment of ENVIRONMENT."""
    if source.startswith(VERIFIERS):
        return source.removeprefix(VERIFIERS).rpartition("/")[2]
    return Path(source).stem if source.endswith(".py") else source


def _weights(text: str, count: int) -> list[float]:
    try:
        weights = [float(word) for word in text.split()] or [1.0] * count
    except ValueError:
        weights = []
    if len(weights) != count or not all(0 <= weight < math.inf for weight in weights) or not sum(weights):
        raise SetupError(
            f"--environment_weights is {text!r} for {count} environments", "give a number for each of them, 0 or more"
        )
    return [weight / sum(weights) for weight in weights]


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
    """The settings of rollouts."""

    mixture: Mixture
    limits: RolloutLimits
    max_rows: int  # trained rows of a rollout; the actor holds them in memory at once

    @classmethod
    def from_variables(cls, environ: Mapping[str, str]) -> "EnvironmentSettings":
        """Read GRPO_ENVIRONMENT and the limits. Raises UserError without an environment, or for an invalid value."""
        given = variables(environ)
        if not given:
            raise SetupError("ENVIRONMENT is missing", "set ENVIRONMENT to a name or to a .py file")
        words = [f"--{name.lower()}={value}" for name, value in given.items()]
        read = make_strict(make_environment_parser()).parse_args(words)
        limits = RolloutLimits(read.turn_limit, read.rollout_seconds, read.tool_seconds, read.score_seconds)
        return cls(Mixture.from_variables(given), limits, read.max_branches + 1)
