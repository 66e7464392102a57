"""Groups that are unfinished at a sync, with PARTIAL_ROLLOUTS: the next policy continues them.

More groups are being sampled than a step needs. A step trains on those that are finished first. At the sync the engines
cut the others, and continue them when the next batch begins. A group that has seen PARTIAL_POLICIES policies ends
before the next sync, however long that takes.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import ray
import torch

from grpo.batch import saved_samples
from grpo.rollout import continued, replacement
from grpo.stack.upstream.arguments import Arguments
from grpo.stack.upstream.engine import EngineActor
from grpo.stack.upstream.experience import Sample
from grpo.stack.upstream.trainer import SamplesGenerator

logger = logging.getLogger("openrlhf.grpo.unfinished")

# Of vLLM's ``SamplingParams``: what OpenRLHF and our hooks set for a prompt
_PARAMS = (
    *("temperature", "top_p", "top_k", "max_tokens", "min_tokens", "skip_special_tokens", "logprobs", "seed"),
    "extra_args",
)


@dataclass
class Group:
    """A group that is being sampled.

    Attributes:
        number: how many groups the run began before it.
        call: the arguments of the engine's ``generate_responses``.
        policies: how many policies have sampled it.
        reference: Ray's, to its responses; None until it is sent to an engine, after a resume.
        known: the calls of its rollouts that a checkpoint held.
    """

    number: int
    call: dict[str, Any]
    policies: int = 1
    reference: Any = None
    known: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def rollouts(self) -> list[str]:
        """Return the names of its rollouts."""
        seed = self.call["sampling_params"].seed
        return [continued.rollout_of(seed, number) for number in range(self.call["num_samples"])]


class Unfinished:
    """The groups of a generator that no step has trained on yet.

    Attributes:
        groups: those that are being sampled, by the seed of their prompt.
        spare: the samples of finished groups that the step did not need, in order.
        begun: how many groups the run has begun.
    """

    def __init__(self) -> None:
        self.groups: dict[int, Group] = {}
        self.spare: list[Sample] = []
        self.begun = 0


def is_on(generator: SamplesGenerator) -> bool:
    """Return whether what is being sampled may be continued: never an evaluation."""
    return generator.args.partial_rollouts > 0 and generator.stage.startswith("train")


def of(generator: SamplesGenerator) -> Unfinished:
    """Return the unfinished groups of a generator."""
    if not hasattr(generator, "unfinished"):
        generator.unfinished = Unfinished()
    mine: Unfinished = generator.unfinished
    return mine


# The batch of a step


def begin_batch(generator: SamplesGenerator) -> tuple[list[Sample], int]:
    """Let the engines continue. Return the finished samples that wait for a batch, and how many groups are sampled."""
    if not is_on(generator):
        return [], 0
    mine = of(generator)
    rollouts = [name for group in mine.groups.values() for name in group.rollouts]
    known = {name: calls for group in mine.groups.values() for name, calls in group.known.items()}
    ray.get([engine.go_on.remote(generator.policy, rollouts, known) for engine in generator.vllm_engines])
    replacement.of(generator).policy = generator.policy
    for at, group in enumerate(mine.groups.values()):
        if group.reference is None:
            engine = generator.vllm_engines[at % len(generator.vllm_engines)]
            call = group.call | {"hf_tokenizer": generator.tokenizer}
            group.reference = replacement.of(generator).send(engine, call)
            group.known = {}
    spare, mine.spare = mine.spare, []
    return spare, len(mine.groups)


def send(generator: SamplesGenerator, engine: EngineActor, **call: Any) -> Any:
    """Send a prompt to an engine; return Ray's reference to the responses."""
    reference = replacement.of(generator).send(engine, call)
    if is_on(generator):
        mine = of(generator)
        kept = {name: value for name, value in call.items() if name != "hf_tokenizer"}
        mine.groups[call["sampling_params"].seed] = Group(mine.begun, kept, reference=reference)
        mine.begun += 1
    return reference


def pending(generator: SamplesGenerator, references: list[Any]) -> list[Any]:
    """Return the references to all groups that are being sampled, those just sent included."""
    if not is_on(generator):
        return references
    return [group.reference for group in of(generator).groups.values()]


def wait(generator: SamplesGenerator, references: list[Any]) -> tuple[list[Any], list[Any]]:
    """Wait for the responses to a prompt. Return what is there, and what is still being sampled.

    If an engine was replaced, its rollouts begin anew, under the policy of this step.
    """
    ready, again = replacement.of(generator).wait(references, getattr(generator, "sampled", None))
    for group in of(generator).groups.values() if is_on(generator) else ():
        group.reference = again.get(group.reference, group.reference)
    return ready, [again.get(reference, reference) for reference in references if reference not in ready]


def goes_on(generator: SamplesGenerator, references: Sequence[Any], accepted: Sequence[Sample]) -> bool:
    """Return whether the batch waits for more groups."""
    args = generator.args
    if not references or not is_on(generator):
        return bool(references)
    is_full = len(accepted) >= args.rollout_batch_size * args.n_samples_per_prompt
    return not is_full or any(group.policies >= args.partial_policies for group in of(generator).groups.values())


def landed(generator: SamplesGenerator, samples: Sequence[Sample]) -> None:
    """Note that a group is finished: its samples get its number."""
    if is_on(generator):
        group = of(generator).groups.pop(samples[0].group)
        for sample in samples:
            sample.number = group.number


def batch_of(generator: SamplesGenerator, accepted: list[Sample]) -> list[Sample]:
    """Return the samples of the oldest groups, as many as a step needs; the others are spare."""
    if not is_on(generator):
        return accepted
    needed = generator.args.rollout_batch_size * generator.args.n_samples_per_prompt
    in_order = sorted(accepted, key=lambda sample: sample.number)
    of(generator).spare = in_order[needed:]
    return in_order[:needed]


# Between two steps


def cut(generator: SamplesGenerator) -> None:
    """Let the engines cut what they sample: the sync is next."""
    if not generator.args.partial_rollouts:
        return
    ray.get([engine.cut.remote() for engine in generator.vllm_engines])
    groups = of(generator).groups.values()
    for group in groups:
        group.policies += 1
    logger.info("%d unfinished groups are continued by the next policy", len(groups))


def state(generator: SamplesGenerator, policy: int) -> dict[str, Any]:
    """Return the unfinished groups for a checkpoint, as tensors and plain values; {} without PARTIAL_ROLLOUTS.

    Args:
        policy: the one that the engines hold now.
    """
    if not generator.args.partial_rollouts:
        return {}
    mine = of(generator)
    rollouts = [name for group in mine.groups.values() for name in group.rollouts]
    known: dict[str, Any] = {}
    for calls in ray.get([engine.calls.remote(rollouts) for engine in generator.vllm_engines]):
        known |= calls
    groups = [
        {
            "number": group.number,
            "policies": group.policies,
            "call": group.call | {"sampling_params": _plain(group.call["sampling_params"])},
            "known": group.known | {name: known[name] for name in group.rollouts if name in known},
        }
        for group in mine.groups.values()
    ]
    return {
        "unfinished": {
            "policy": policy,
            "begun": mine.begun,
            "groups": groups,
            "spare": [saved_samples.plain(sample) for sample in mine.spare],
        }
    }


def restore(generator: SamplesGenerator, saved: dict[str, Any], make: Callable[[], Sample]) -> None:
    """Continue from :func:`state`; without PARTIAL_ROLLOUTS, drop the unfinished groups.

    Args:
        saved: the state's ``unfinished``.
        make: returns an empty sample.
    """
    if not generator.args.partial_rollouts:
        logger.warning("%d unfinished groups are dropped: PARTIAL_ROLLOUTS is 0", len(saved["groups"]))
        return
    from vllm import SamplingParams

    mine = of(generator)
    mine.begun = saved["begun"]
    mine.spare = [saved_samples.filled(make, sample) for sample in saved["spare"]]
    for group in saved["groups"]:
        params = SamplingParams(**group["call"]["sampling_params"])
        call = group["call"] | {"sampling_params": params}
        seed = group["call"]["sampling_params"]["seed"]
        mine.groups[seed] = Group(group["number"], call, group["policies"], known=group["known"])


def _plain(params: Any) -> dict[str, Any]:
    return {name: getattr(params, name) for name in _PARAMS}


# What a step was trained on


def of_one_policy(samples: Sequence[Sample], policy: int, args: Arguments) -> list[Sample]:
    """Return the samples of those groups that this policy has sampled whole."""
    if not args.partial_rollouts:
        return list(samples)
    size = args.n_samples_per_prompt
    groups = [samples[start : start + size] for start in range(0, len(samples), size)]
    return [sample for group in groups if all(_is_of(sample, policy) for sample in group) for sample in group]


def _is_of(sample: Sample, policy: int) -> bool:
    return hasattr(sample, "policies") and bool((_sampled(sample) == policy).all())


def _sampled(sample: Sample) -> torch.Tensor:
    """Return the policies of the sampled tokens of a sample."""
    return sample.policies[sample.action_mask[0].bool()]


def runs_of(sample: Sample) -> list[list[int]]:
    """Return which policies sampled a rollout: the number of each, in optimizer steps, and its tokens in a row."""
    return [[int(policy), len(list(tokens))] for policy, tokens in groupby(_sampled(sample).tolist())]


def metrics(samples: Sequence[Sample], policy: int, args: Arguments) -> dict[str, float]:
    """Return how far behind the policies are that sampled the tokens of a step; {} without PARTIAL_ROLLOUTS.

    Args:
        policy: the one that the step begins with, in optimizer steps.
    """
    if not args.partial_rollouts:
        return {}
    each = [_sampled(sample) for sample in samples if hasattr(sample, "policies")]
    if not each:  # a batch from a checkpoint of a run without PARTIAL_ROLLOUTS
        return {}
    ages = policy - torch.cat(each).double()
    return {
        "staleness": float(ages.mean()),
        "staleness_max": float(ages.max()),
        "rollouts_continued": sum(len(policies.unique()) > 1 for policies in each) / len(each),
    }
