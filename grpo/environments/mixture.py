"""Assigns each problem of a run to one of its environments.

A line of a data file can name its environment in the field `environment`. The weights divide the other problems, in the
order of their prompts' hashes: the shares are exact, and a problem keeps its environment in every step.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.environments.environment import VERIFIERS, SetupError
from grpo.stack.json_files import numbered_rows

SINGLE = "single"  # the environment of single answers
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
        """Return the environment of each prompt of a data file.

        Args:
            key: the field of the prompt.

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
        """Return the numbers by environment of one rollout; {} for a run with a single environment.

        A rollout has no numbers for other environments, so a mean over the batch is a mean over this environment.

        Args:
            name: of the rollout's environment.
            response: the trainer's, see :func:`grpo.rollout.multi_turn.roll_out`.
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
