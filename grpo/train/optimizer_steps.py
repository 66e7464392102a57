"""The optimizer steps of a run: their number, their learning rates, and whose log-probs their ratio compares with.

All of it follows from the flags, without torch: the launcher prints and checks it. The schedule of the learning rate
spans the steps that the run makes, so --steps sets its length. It is transformers' schedule of that name, one optimizer
step ahead: in a warmup of N steps, the first has 1/N of the peak instead of 0, and the N-th the peak.
"""

import math
from argparse import Namespace
from dataclasses import dataclass

_LOW = 5e-6  # LoRA usually takes ten times the rate of full fine-tuning, and RL of all weights about 1e-6
_LEAST = 0.1  # of the peak, at the end of a cosine


def count_steps(args: Namespace, problems: int) -> int:
    """Return the global steps of a run with this many training problems."""
    steps: int = problems // args.rollout_batch_size * args.num_episodes
    return min(steps, args.max_steps) if args.max_steps else steps


def count_updates(args: Namespace) -> int:
    """Return the optimizer steps of a global step."""
    return int(args.rollout_batch_size * args.n_samples_per_prompt * args.max_epochs // args.train_batch_size)


@dataclass(frozen=True)
class LearningRate:
    """The schedule of a run.

    Attributes:
        name: one of those of --lr_scheduler.
        peak: the highest learning rate.
        warm_up, length: optimizer steps of the warmup and of the whole run.
        per_step: optimizer steps of a global step.
    """

    name: str
    peak: float
    warm_up: int
    length: int
    per_step: int

    @classmethod
    def of_run(cls, args: Namespace, length: int) -> "LearningRate":
        """Return the schedule of a run of this many optimizer steps."""
        warm_up = math.ceil(length * args.lr_warmup_ratio)
        return cls(args.lr_scheduler, args.actor_learning_rate, warm_up, length, count_updates(args))

    def compute_share(self, done: int) -> float:
        """Return which share of the peak the optimizer step after `done` others has."""
        position = done + 1  # one ahead of transformers, whose first step would have a rate of 0
        if self.name == "constant":
            return 1.0
        if position < self.warm_up:
            return position / self.warm_up
        if self.name == "inverse_sqrt":
            scale = self.warm_up or 10_000
            return math.sqrt(scale / (position + scale - self.warm_up))
        if self.name == "cosine_with_min_lr":
            # A run that is resumed with larger batches may have made more optimizer steps than it will have in all.
            progress = min(1.0, (position - self.warm_up) / max(1, self.length - self.warm_up))
            return _LEAST + (1 - _LEAST) * 0.5 * (1 + math.cos(math.pi * progress))
        return 1.0

    def compute_at_step(self, step: int) -> float:
        """Return `actor_lr` of a global step: the mean over its optimizer steps."""
        first = (step - 1) * self.per_step
        shares = [self.compute_share(done) for done in range(first, first + self.per_step)]
        return self.peak * sum(shares) / self.per_step


def warnings(args: Namespace) -> list[str]:
    """Return a line for a learning rate that is low for LoRA."""
    rate = args.actor_learning_rate
    return [f"WARNING: --actor_learning_rate {rate:g} is low for LoRA, see docs/tuning.md"] * (0 < rate < _LOW)


# Whose log-probs the loss's ratio compares with


def is_on_policy(args: Namespace) -> bool:
    """Return whether a global step is one optimizer step, so that the trained policy is the one that sampled."""
    return bool(args.rollout_batch_size * args.n_samples_per_prompt * args.max_epochs == args.train_batch_size)


def makes_old_log_probs(args: Namespace) -> bool:
    """Return whether the ratio uses log-probs from before the update, for which the trainer runs an extra pass.

    It does not if the policy has not moved, or if the ratio uses the engine's log-probs.
    """
    return not (is_on_policy(args) or is_of_engine(args))


def is_in_update(args: Namespace) -> bool:
    """Return whether old log-probs come from the update itself: only the first optimizer step then saves a pass.

    A KL penalty in the reward reads them earlier, and a second epoch needs them for the first optimizer step, too.
    """
    return makes_old_log_probs(args) and args.max_epochs == 1 and not reads_kl(args)


def reads_kl(args: Namespace) -> bool:
    """Return whether a KL penalty in the reward compares the policy with the reference."""
    return bool(args.init_kl_coef > 0 and not args.use_kl_loss)


def is_of_engine(args: Namespace) -> bool:
    """Return whether the loss's ratio uses the engine's log-probs of the rollouts."""
    return bool(args.old_log_probs == "engine")


def share_of_old_pass(args: Namespace) -> float:
    """Return the share of a step's rollouts whose old log-probs take an extra pass."""
    if not makes_old_log_probs(args):
        return 0.0
    first = args.train_batch_size / (args.rollout_batch_size * args.n_samples_per_prompt)
    return 1 - first if is_in_update(args) else 1.0
