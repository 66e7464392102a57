"""Hooks of openrlhf/trainer/ppo_utils/experience_maker.py: prompts to samples, samples to micro-batches."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from grpo.batch import advantages, branches, degenerate, filtering, length_penalty, rewards, unfinished
from grpo.rollout import replacement, seeds, trajectory
from grpo.stack.upstream.arguments import Arguments
from grpo.stack.upstream.engine import EngineActor
from grpo.stack.upstream.experience import Batch, Sample
from grpo.stack.upstream.trainer import ExperienceMaker, SamplesGenerator
from grpo.update import passes

if TYPE_CHECKING:
    from ray import ObjectRef
    from vllm.sampling_params import SamplingParams

# SamplesGenerator


def begin_batch(
    generator: SamplesGenerator, num_prompts: int, prompts: Iterator[Any], dynamic_filtering: bool
) -> tuple[list[Sample], int, Iterator[Any]]:
    """Return the samples that the batch has already, how many prompts to draw at first, and the prompts."""
    return filtering.begin_batch(generator, num_prompts, prompts, dynamic_filtering)


def samples_per_prompt(args: Arguments, generate_kwargs: dict[str, Any]) -> int:
    """Return how many samples a prompt gets, in training or in an evaluation."""
    return seeds.samples_a_prompt(args, generate_kwargs)


def seeded(generator: SamplesGenerator, params: "SamplingParams", prompt: str) -> "SamplingParams":
    """Return sampling parameters whose seed follows from run, step and prompt."""
    return seeds.seeded(generator, params, prompt)


def send(generator: SamplesGenerator, engine: EngineActor, **call: Any) -> "ObjectRef[Any]":
    """Let an engine answer a prompt."""
    reference: ObjectRef[Any] = unfinished.send(generator, engine, **call)
    return reference


def pending(generator: SamplesGenerator, references: "list[ObjectRef[Any]]") -> "list[ObjectRef[Any]]":
    """Return what is being sampled: what was sent now, and what an earlier policy has not finished."""
    return unfinished.pending(generator, references)


def wait(
    generator: SamplesGenerator, references: "list[ObjectRef[Any]]"
) -> "tuple[list[ObjectRef[Any]], list[ObjectRef[Any]]]":
    """Wait for responses. Return what is there, and what is still being sampled; an engine that died is replaced."""
    return unfinished.wait(generator, references)


def loads(generator: SamplesGenerator) -> list[int]:
    """Return the number of requests that each engine has not finished."""
    return replacement.of(generator).loads(generator.vllm_engines)


def goes_on(generator: SamplesGenerator, references: "Sequence[ObjectRef[Any]]", accepted: Sequence[Sample]) -> bool:
    """Return whether the batch waits for more groups."""
    return unfinished.goes_on(generator, references, accepted)


def experience_of(generator: SamplesGenerator, response: dict[str, Any], **generate_kwargs: Any) -> Sample:
    """Return the ``Experience`` of one rollout, with its branches."""
    return branches.experience_of(generator, response, **generate_kwargs)


def reward_of(args: Arguments, response: dict[str, Any]) -> float | None:
    """Return the reward of a response; NaN if missing, None if a reward model scores later."""
    return rewards.reward_of(args, response, "reward")


def score_of(args: Arguments, response: dict[str, Any]) -> float | None:
    """Return the score of a response, with the same rules as :func:`reward_of`."""
    return rewards.reward_of(args, response, "scores")


def sampled_length(action_mask: torch.Tensor) -> int | float:
    """Return the number of sampled tokens of a response."""
    return action_mask.sum().item()


def is_truncated(response: dict[str, Any], limit: int) -> bool:
    """Return whether the engine or OpenRLHF's own limit cut the response."""
    return trajectory.is_truncated(response, limit)


def length_limit(generate_kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the entry of ``info`` with the limit under which a sample was drawn."""
    return length_penalty.limit_of(generate_kwargs)


def scalar(value: object) -> float:
    """Return a log of the reward function as a number; NaN if it is not one."""
    return rewards.scalar(value)


def kept(generator: SamplesGenerator, group: list[Sample], dynamic_filtering: bool) -> list[Sample]:
    """Return the samples of a finished group; [] if dynamic filtering leaves it out."""
    return filtering.kept(generator, group, dynamic_filtering)


def end_batch(generator: SamplesGenerator, accepted: list[Sample], exhausted: bool) -> tuple[list[Sample], bool]:
    """Return the samples of a batch, and whether the prompts ran out before it was full."""
    return filtering.end_batch(generator, accepted, exhausted)


def pass_rate(generator: SamplesGenerator) -> float:
    """Return the groups that dynamic filtering kept, in percent of those that the step drew."""
    return filtering.pass_rate(generator)


def in_order(generator: SamplesGenerator, samples: list[Sample]) -> list[Sample]:
    """Return the samples in the order in which their prompts were drawn."""
    return seeds.in_order(generator, samples)


# RemoteExperienceMaker


def complete(samples: Sequence[Sample], args: Arguments) -> None:
    """Mark degenerate samples, and give every sample a reward and the same logs."""
    degenerate.mark(samples, args)
    rewards.complete(samples, args.n_samples_per_prompt)


def with_branches(batches: list[Batch], samples: Sequence[Sample], pad_token_id: int) -> list[Batch]:
    """Add the branches of the rollouts to their micro-batches, as rows."""
    return branches.with_branches(batches, samples, pad_token_id)


def old_log_probs(
    maker: ExperienceMaker, samples: Sequence[Batch], **batches: list[torch.Tensor]
) -> "list[ObjectRef[Any]] | ObjectRef[Any]":
    """Start the forward passes for the old log-probs, if the loss reads them."""
    return passes.old_log_probs_ref(maker, samples, **batches)


def recorded_routing(samples: Sequence[Batch]) -> dict[str, Any]:
    """Return the argument of the reference's passes that replays the engine's choice of experts."""
    return passes.of_batches(samples)


def apart(batches: list[Batch]) -> list[Batch]:
    """Move the branches out of the micro-batches: advantages are computed for rollouts."""
    return branches.apart(batches)


def give_advantages(maker: ExperienceMaker, batches: list[Batch]) -> list[Batch]:
    """Give all rows their advantages. Replaces ``compute_advantages_and_returns``."""
    args = maker.args
    if args.stop_properly_penalty_coef is not None:
        from openrlhf.trainer.ppo_utils.length_penalty import apply_stop_properly_penalty

        apply_stop_properly_penalty(batches, args.stop_properly_penalty_coef)
    length_penalty.penalise(batches, args)
    advantages.compute(batches, args, maker.kl_ctl.value)
    return branches.give_advantages(batches)
