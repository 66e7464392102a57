"""The limit on response length over the run: it grows with global steps or with the share of truncated rollouts.

The engines start with the largest limit (``--generate_max_len``), which evaluations use from the start. Only the limit
of training rollouts changes; nothing restarts. Under a thinking budget, a limit below thinking, delimiter and answer
shortens the thinking; the answer keeps its part.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo.stack.problem import UserError
from grpo.stack.upstream import Arguments

if TYPE_CHECKING:  # the launcher reads schedules without torch
    from grpo.rollout.rows import Sample

WINDOW = 5  # steps over which the share of truncated rollouts is averaged
_EXAMPLES = "write 1024,2048@50,3072@100 (steps) or 1024,2048@20% (truncated rollouts)"
_STAGE = re.compile(r"(?P<length>\d+)(@(?P<step>\d+)|@(?P<percent>\d+(\.\d+)?)%)?")


@dataclass(frozen=True)
class Stage:
    """One limit of a schedule and its start: a global step, or a share of truncated rollouts.

    Attributes:
        length: the most tokens of a response.
        step: the first global step of the stage; steps count from 1.
        truncated: the share that starts the stage, from 0 to 1: a mean over :data:`WINDOW` steps of the previous stage.
    """

    length: int
    step: int | None = None
    truncated: float | None = None


def parse(schedule: str) -> tuple[Stage, ...]:
    """Read a schedule: limits separated by commas, each after the first with the step or share that starts it.

    ``1024,2048@50,3072@100`` goes by global steps; ``1024,2048@20%,3072@20%`` by the share of truncated rollouts.

    Raises:
        UserError: if it is invalid; the remedy gives an example.
    """
    stages: list[Stage] = []
    for text in schedule.replace(" ", "").split(","):
        fields = _STAGE.fullmatch(text)
        if not fields:
            raise UserError(f"{text!r} is not a limit", _EXAMPLES)
        step, percent = fields["step"], fields["percent"]
        if bool(stages) != bool(step or percent):
            raise UserError(f"each limit but the first says when it begins, unlike {text}", _EXAMPLES)
        share = float(percent) / 100 if percent else None
        if share is not None and not 0 < share <= 1:
            raise UserError(f"{text} begins at a share of truncated rollouts of 0% or above 100%", _EXAMPLES)
        stages.append(Stage(int(fields["length"]), int(step) if step else None, share))
    lengths = [0, *(stage.length for stage in stages)]
    steps = [1, *(stage.step for stage in stages if stage.step is not None)]
    if lengths != sorted(set(lengths)) or steps != sorted(set(steps)):
        raise UserError("limits and steps do not grow, from step 2 on", _EXAMPLES)
    return tuple(stages)


def parse_stages(args: Arguments) -> tuple[Stage, ...]:
    """Return the stages of a run; a single one of its whole length if it has no schedule.

    Raises:
        UserError: see :func:`parse`.
    """
    return parse(args.length_schedule) if args.length_schedule else (Stage(args.generate_max_len),)


class Schedule:
    """The limit of each step. Stages by step depend on the step alone; stages by truncation need a saved state.

    Args:
        state: the last result of :meth:`count_truncated` before a resume; None at the start of a run.
    """

    def __init__(self, args: Arguments, state: dict[str, Any] | None = None) -> None:
        self._stages = parse_stages(args)
        state = state or {}
        self._grown: int = state.get("grown", 0)  # the largest limit reached by truncation
        self._limit: int = state.get("limit", 0)
        self._truncated: list[float] = list(state.get("truncated", []))  # of the last steps with that limit

    def limit(self, step: int) -> int:
        """Return the most tokens that a response of this global step may have."""
        return self._stages[self._find_stage(step)].length

    def _find_stage(self, step: int) -> int:
        number = 0
        for stage in self._stages[1:]:
            has_begun = self._grown >= stage.length if stage.step is None else step >= stage.step
            if not has_begun:
                break
            number += 1
        return number

    def count_truncated(self, step: int, samples: "Sequence[Sample]") -> dict[str, Any]:
        """Count the truncated rollouts of a step, and return the state for a resume.

        Cut thinking counts too: under a thinking budget, a limit rarely cuts the answer. With --pipeline, samples may
        have been drawn before the limit grew; these do not count for the new one.

        Args:
            step: the global step for which these were drawn.
        """
        number = self._find_stage(step)
        length = self._stages[number].length
        if float(samples[0].info["length_limit"]) == length:
            if length != self._limit:  # the first step with this limit
                self._limit, self._truncated = length, []
            infos = [sample.info for sample in samples]
            cut = [max(float(info["truncated"]), float(info.get("thinking_truncated", 0.0))) for info in infos]
            share = sum(cut) / len(cut)
            self._truncated = [*self._truncated, share][-WINDOW:]
            mean = sum(self._truncated) / WINDOW + 1e-9  # 1e-9: a share of exactly 20% reaches 20% despite rounding
            for after in self._stages[number + 1 : number + 2]:
                if after.truncated and len(self._truncated) == WINDOW and mean >= after.truncated:
                    self._grown = after.length
        return {"grown": self._grown, "limit": self._limit, "truncated": self._truncated}
