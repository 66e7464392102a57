"""Whose log-probs the loss's ratio compares with, from the flags alone. Works without torch."""

from grpo.stack.upstream.arguments import Arguments


def optimizer_steps(args: Arguments) -> float:
    """Return how many optimizer steps a global step makes."""
    return args.rollout_batch_size * args.n_samples_per_prompt * args.max_epochs / args.train_batch_size


def is_on_policy(args: Arguments) -> bool:
    """Return whether a global step is one optimizer step, so that the trained policy is the one that sampled."""
    return optimizer_steps(args) == 1


def makes_old_log_probs(args: Arguments) -> bool:
    """Return whether the ratio uses log-probs from before the update, for which the trainer makes an extra pass.

    It does not if the policy has not moved, or if the ratio uses the engine's log-probs.
    """
    return not (is_on_policy(args) or is_of_engine(args))


def is_in_update(args: Arguments) -> bool:
    """Return whether old log-probs come from the update itself: only the first optimizer step then saves a pass.

    A KL penalty in the reward reads them earlier, and a second epoch needs them for the first optimizer step, too.
    """
    return makes_old_log_probs(args) and args.max_epochs == 1 and not reads_kl(args)


def reads_kl(args: Arguments) -> bool:
    """Return whether a KL penalty in the reward compares the policy with the reference."""
    return args.init_kl_coef > 0 and not args.use_kl_loss


def is_of_engine(args: Arguments) -> bool:
    """Return whether the loss's ratio uses the engine's log-probs of the rollouts."""
    return bool(args.old_log_probs == "engine")


def share_of_old_pass(args: Arguments) -> float:
    """Return the share of a step's rollouts for which the trainer makes a pass for old log-probs."""
    if not makes_old_log_probs(args):
        return 0.0
    return 1 - 1 / optimizer_steps(args) if is_in_update(args) else 1.0
