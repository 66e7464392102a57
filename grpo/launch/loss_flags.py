"""Flags of the loss and of the KL term that the trainer refuses."""

import argparse
from collections.abc import Iterator

from grpo.stack.problem import Problem
from grpo.train import objectives


def corrects_for_sampling(args: argparse.Namespace) -> bool:
    """Return whether the loss compares the trained policy with the one that sampled, as the engine recorded it."""
    return bool(args.old_log_probs == "engine" or args.enable_vllm_is_correction)


def problems(args: argparse.Namespace) -> Iterator[Problem]:
    """Yield each problem of these arguments with its remedy."""
    if args.gamma != 1 and args.advantage_estimator != "reinforce":
        yield Problem(
            f"--gamma {args.gamma:g} has no effect: {args.advantage_estimator} compares whole rollouts", "remove it"
        )
    yield from _ratio(args)
    yield from _clipping(args)
    yield from _kl(args)


def _ratio(args: argparse.Namespace) -> Iterator[Problem]:
    low, high = args.vllm_is_truncated_threshold
    if args.enable_vllm_is_correction and not 0 <= low < high:
        yield Problem(
            f"--vllm_is_truncated_threshold is {low:g} {high:g}", "give two numbers from 0 up, the lower one first"
        )
    if args.vllm_is_max_kl is not None and not args.enable_vllm_is_correction:
        yield Problem("--vllm_is_max_kl has no effect by itself", "add --enable_vllm_is_correction, or remove it")
    if args.enable_vllm_is_correction and args.old_log_probs == "engine":
        yield Problem(
            "--old_log_probs engine with --enable_vllm_is_correction corrects for the engine twice",
            "remove one of them",
        )
    if args.pipeline and not corrects_for_sampling(args):
        yield Problem(
            "--pipeline trains on rollouts of an earlier policy, and nothing corrects for that",
            "set --old_log_probs engine, or add --enable_vllm_is_correction",
        )
    if args.top_p < 1 and (args.enable_vllm_is_correction or args.old_log_probs == "engine"):
        yield Problem(
            f"--top_p {args.top_p:g} truncates the engine's distribution, so its log-probs cannot be compared with the "
            "trainer's",
            "set --top_p 1, or neither --enable_vllm_is_correction nor --old_log_probs engine",
        )
    if objectives.LOSSES[args.policy_loss_type].of_rollout and args.loss_aggregation != "sequence_mean":
        yield Problem(
            f"--policy_loss_type {args.policy_loss_type} has one ratio for the whole rollout",
            "set --loss_aggregation sequence_mean",
        )


def _clipping(args: argparse.Namespace) -> Iterator[Problem]:
    for name in ("eps_clip_low_high", "dual_clip"):
        if getattr(args, name) is not None and not objectives.is_read(f"--{name}", args.policy_loss_type):
            yield Problem(f"--{name} has no effect with --policy_loss_type {args.policy_loss_type}", "remove it")
    if args.eps_clip_low_high is not None and not (0 < args.eps_clip_low_high[0] < 1 and args.eps_clip_low_high[1] > 0):
        low, high = args.eps_clip_low_high
        yield Problem(
            f"--eps_clip_low_high is {low:g} {high:g}",
            "give a lower bound between 0 and 1 and an upper bound above 0",
        )


def _kl(args: argparse.Namespace) -> Iterator[Problem]:
    if args.use_kl_loss and not args.init_kl_coef > 0:
        yield Problem("--use_kl_loss has no effect without a coefficient", "set --init_kl_coef, for example 0.001")
    if args.init_kl_coef > 0 and not args.use_kl_loss and args.kl_estimator != "k1":
        yield Problem(
            f"--kl_estimator {args.kl_estimator} in the reward has a mean gradient of almost 0 near the reference",
            "remove it, or add --use_kl_loss",
        )
    if args.init_kl_coef > 0 and not args.use_kl_loss and args.top_p < 1:
        yield Problem(
            f"--top_p {args.top_p:g} truncates the engine's distribution, so a KL term in the reward may compare log-"
            "probs of different distributions",
            "set --top_p 1, or add --use_kl_loss --kl_estimator k3",
        )
