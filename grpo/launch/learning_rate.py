"""The learning rate of each global step, as the run will have it in metrics.jsonl. Works without torch."""

import math
from argparse import Namespace
from dataclasses import dataclass

from grpo.stack.counted import format_count

_LOW = 5e-6  # LoRA usually takes ten times the rate of full fine-tuning, and RL of all weights about 1e-6


@dataclass(frozen=True)
class LearningRate:
    """The schedule of a run, in optimizer steps. `--max_steps` ends a run and does not shorten its schedule.

    Attributes:
        name: of a schedule of transformers, one of those of LR_SCHEDULER.
        peak: the learning rate after the warmup.
        warm_up, length: optimizer steps of the warmup and of the whole schedule.
        per_step: optimizer steps of a global step.
    """

    name: str
    peak: float
    warm_up: int
    length: int
    per_step: int

    @classmethod
    def of_run(cls, args: Namespace, length: int, per_step: int) -> "LearningRate":
        """Return the schedule that OpenRLHF makes from its arguments."""
        warm_up = math.ceil(length * args.lr_warmup_ratio)
        return cls(args.lr_scheduler, args.actor_learning_rate, warm_up, length, per_step)

    def compute_at_update(self, done: int) -> float:
        """Return the learning rate after this many optimizer steps, by transformers' formulas."""
        if self.name == "constant":
            return self.peak
        if self.name.startswith("cosine"):
            return self.peak * self._cosine(done)
        if done < self.warm_up:
            return self.peak * done / self.warm_up
        if self.name == "inverse_sqrt":
            scale = self.warm_up or 10_000
            return self.peak / math.sqrt((done + scale - self.warm_up) / scale)
        return self.peak

    def _cosine(self, done: int) -> float:
        """Return the share of the peak; it falls to a tenth, which OpenRLHF sets as the minimum."""
        late = 0
        if self.name == "cosine_warmup_with_min_lr":  # its warmup does not begin at 0
            if done < self.warm_up:
                return (done + 1) / self.warm_up
            late = 1
        elif done < self.warm_up:
            return done / self.warm_up
        progress = (done - self.warm_up + late) / max(1, self.length - self.warm_up)
        return max(0.0, 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))

    def compute_at_step(self, step: int) -> float:
        """Return `actor_lr` of a global step: the mean over its optimizer steps."""
        first = (step - 1) * self.per_step
        return sum(self.compute_at_update(done) for done in range(first, first + self.per_step)) / self.per_step

    def describe(self, steps: int) -> list[str]:
        """Describe warmup and learning rates of a run of this many global steps in lines for people."""
        if steps < 1:
            return []  # the launcher refuses the run
        warm_up = math.ceil(self.warm_up / self.per_step)
        # The mean of a step reaches the peak after the warmup.
        highest = max(
            range(1, min(steps, warm_up + 2) + 1), key=lambda step: (round(self.compute_at_step(step), 15), -step)
        )
        shown = sorted({1, 2, 3, highest, steps} & set(range(1, steps + 1)))
        rates = ", ".join(f"{self.compute_at_step(step):.3g} in step {step}" for step in shown)
        of_steps = format_count(warm_up, "global step")
        cut = f"; the run ends before it, after step {steps}" if warm_up > steps else ""
        return [
            f"schedule    {self.name} over {format_count(self.length, 'optimizer step')}, "
            f"warmup {self.warm_up} ({of_steps}{cut})",
            f"            learning rate: {rates}; the peak of the schedule is {self.peak:g}",
        ]


def warnings(args: Namespace) -> list[str]:
    """Return a line for a learning rate that is low for LoRA."""
    rate = args.actor_learning_rate
    return [f"WARNING: LEARNING_RATE={rate:g} is low for LoRA, see docs/tuning.md"] * (0 < rate < _LOW)
