"""Groups that are unfinished at a sync, with PARTIAL_ROLLOUTS: the next policy continues them.

More groups are being sampled than a step needs. A step trains on those that are finished first. At the sync the engines
cut the others, and continue them when the next batch begins. A group that has seen PARTIAL_POLICIES policies ends
before the next sync, however long that takes.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import ray
import torch

from grpo.rollout import continued
from grpo.rollout.engine_calls import EngineCalls
from grpo.rollout.rows import Sample, dump_sample, restore_sample
from grpo.stack.upstream.arguments import Arguments

logger = logging.getLogger("openrlhf.grpo.unfinished")

# Of vLLM's ``SamplingParams``: what the sampler sets for a prompt
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
        return [continued.name_rollout(seed, number) for number in range(self.call["num_samples"])]


class Unfinished:
    """The groups of a run that no step has trained on yet.

    Args:
        args: OpenRLHF's.
        engines: sample the groups.

    Attributes:
        groups: those that are being sampled, by the seed of their prompt.
        spare: the rollouts of finished groups that the step did not need, in order.
        begun: how many groups the run has begun.
    """

    def __init__(self, args: Arguments, engines: EngineCalls) -> None:
        self._args, self._engines = args, engines
        self.groups: dict[int, Group] = {}
        self.spare: list[Sample] = []
        self.begun = 0

    # The batch of a step

    def begin(self, policy: int) -> tuple[list[Sample], int]:
        """Let the engines continue. Return the finished rollouts that wait for a batch, and the number of open groups.

        Args:
            policy: the one that samples from now on, in optimizer steps.
        """
        engines = self._engines.engines
        known = {name: calls for group in self.groups.values() for name, calls in group.known.items()}
        ray.get([engine.go_on.remote(policy, self._rollouts(), known) for engine in engines])
        self._engines.policy = policy
        for at, group in enumerate(self.groups.values()):
            if group.reference is None:
                group.reference = self._engines.send(engines[at % len(engines)], group.call)
                group.known = {}
        spare, self.spare = self.spare, []
        return spare, len(self.groups)

    def add(self, call: dict[str, Any], reference: Any) -> None:
        """Note a group that an engine samples from now on."""
        self.groups[call["sampling_params"].seed] = Group(self.begun, call, reference=reference)
        self.begun += 1

    def references(self) -> list[Any]:
        """Return the references to all groups that are being sampled."""
        return [group.reference for group in self.groups.values()]

    def needs_more_groups(self, accepted: Sequence[Sample]) -> bool:
        """Return whether a batch waits for more groups: for its own, and for those that may not see another policy."""
        is_full = len(accepted) >= self._count_needed()
        return not is_full or any(group.policies >= self._args.partial_policies for group in self.groups.values())

    def finish(self, samples: Sequence[Sample]) -> None:
        """Note that a group is finished: its rollouts get its number."""
        group = self.groups.pop(samples[0].group)
        for sample in samples:
            sample.number = group.number

    def take_batch(self, accepted: list[Sample]) -> list[Sample]:
        """Return the rollouts of the oldest groups, as many as a step needs; the others are spare."""
        in_order = sorted(accepted, key=lambda sample: sample.number)
        self.spare = in_order[self._count_needed() :]
        return in_order[: self._count_needed()]

    def _count_needed(self) -> int:
        return self._args.rollout_batch_size * self._args.n_samples_per_prompt

    def _rollouts(self) -> list[str]:
        return [name for group in self.groups.values() for name in group.rollouts]

    # Between two steps

    def cut(self) -> None:
        """Let the engines cut what they sample: the sync is next."""
        ray.get([engine.cut.remote() for engine in self._engines.engines])
        for group in self.groups.values():
            group.policies += 1
        logger.info("%d unfinished groups are continued by the next policy", len(self.groups))

    def state(self, policy: int) -> dict[str, Any]:
        """Return the unfinished groups for a checkpoint, as tensors and plain values.

        Args:
            policy: the one that the engines hold now.
        """
        known: dict[str, Any] = {}
        for calls in ray.get([engine.calls.remote(self._rollouts()) for engine in self._engines.engines]):
            known |= calls
        groups = [
            {
                "number": group.number,
                "policies": group.policies,
                "call": group.call | {"sampling_params": _dump_params(group.call["sampling_params"])},
                "known": group.known | {name: known[name] for name in group.rollouts if name in known},
            }
            for group in self.groups.values()
        ]
        spare = [dump_sample(sample) for sample in self.spare]
        return {"policy": policy, "begun": self.begun, "groups": groups, "spare": spare}

    def restore(self, saved: dict[str, Any]) -> None:
        """Continue from :meth:`state`."""
        from vllm import SamplingParams

        self.begun = saved["begun"]
        self.spare = [restore_sample(sample) for sample in saved["spare"]]
        for group in saved["groups"]:
            params = SamplingParams(**group["call"]["sampling_params"])
            call = group["call"] | {"sampling_params": params}
            seed = group["call"]["sampling_params"]["seed"]
            self.groups[seed] = Group(group["number"], call, group["policies"], known=group["known"])


def _dump_params(params: Any) -> dict[str, Any]:
    return {name: getattr(params, name) for name in _PARAMS}


# What a step was trained on


def select_one_policy(samples: Sequence[Sample], policy: int, args: Arguments) -> list[Sample]:
    """Return the rollouts of those groups that this policy has sampled whole."""
    if not args.partial_rollouts:
        return list(samples)
    size = args.n_samples_per_prompt
    groups = [samples[start : start + size] for start in range(0, len(samples), size)]
    return [sample for group in groups if all(_is_of(sample, policy) for sample in group) for sample in group]


def _is_of(sample: Sample, policy: int) -> bool:
    return hasattr(sample, "policies") and bool((_list_policies(sample) == policy).all())


def _list_policies(sample: Sample) -> torch.Tensor:
    """Return the policies of the sampled tokens of a rollout."""
    return sample.policies[sample.action_mask[0].bool()]


def find_policy_runs(sample: Sample) -> list[list[int]]:
    """Return which policies sampled a rollout: the number of each, in optimizer steps, and its tokens in a row."""
    return [[int(policy), len(list(tokens))] for policy, tokens in groupby(_list_policies(sample).tolist())]


def measure_staleness(samples: Sequence[Sample], policy: int, args: Arguments) -> dict[str, float]:
    """Return how far behind the policies are that sampled the tokens of a step; {} without PARTIAL_ROLLOUTS.

    Args:
        policy: the one that the step begins with, in optimizer steps.
    """
    if not args.partial_rollouts:
        return {}
    each = [_list_policies(sample) for sample in samples if hasattr(sample, "policies")]
    if not each:  # a batch from a checkpoint of a run without PARTIAL_ROLLOUTS
        return {}
    ages = policy - torch.cat(each).double()
    return {
        "staleness": float(ages.mean()),
        "staleness_max": float(ages.max()),
        "rollouts_continued": sum(len(policies.unique()) > 1 for policies in each) / len(each),
    }
