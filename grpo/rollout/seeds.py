"""The seed of every sample, from run, step and prompt, and the order of a batch."""

import hashlib
from collections import Counter
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any

from grpo.rollout import continued, greedy, routing
from grpo.rollout.multi_turn.mixture import KEY
from grpo.rollout.multi_turn.settings import environments_by_prompt
from grpo.stack.upstream.arguments import Arguments
from grpo.stack.upstream.experience import Sample
from grpo.stack.upstream.trainer import SamplesGenerator

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams

FIRST_STAGE = "train 1"


def samples_a_prompt(args: Arguments, generate_kwargs: dict[str, Any]) -> int:
    """Return how many samples a prompt gets: the call's own number (evaluations pass one), else training's."""
    return generate_kwargs.get("n_samples_per_prompt", args.n_samples_per_prompt)


def begin_stage(generator: SamplesGenerator, name: str, greedy_sample: int | None = None) -> None:
    """Name the stage of the next samples, for instance "train 7" or "eval 10": their seeds follow from it.

    The first step also seeds the order of the prompts: a process without a seed leaves the loader with a random one. A
    resumed run keeps the order of its checkpoint.

    Args:
        generator: OpenRLHF's ``SamplesGenerator``.
        greedy_sample: the number of each prompt's sample that is greedy; None if none is.
    """
    generator.greedy_sample = greedy_sample
    if getattr(generator, "stage", None) != name:  # a step that continues in the next episode keeps its stage
        generator.stage, generator.drawn = name, Counter()
        if name == FIRST_STAGE:
            generator.prompts_dataloader.sampler.generator.manual_seed(generator.args.seed)


def seeded(generator: SamplesGenerator, params: "SamplingParams", prompt: str) -> "SamplingParams":
    """Return sampling parameters whose seed follows from the run's seed, the stage and the prompt.

    The engine also records the routing of training samples if that is wanted, and with PARTIAL_ROLLOUTS it can continue
    them. With several environments, the parameters name the prompt's.

    A step repeated after a resume therefore samples the same responses, whichever engine gets the prompt and in
    whatever order. A prompt that a stage draws twice gets other samples the second time.

    Args:
        generator: OpenRLHF's ``SamplesGenerator``, after :func:`begin_stage`.
        params: vLLM's ``SamplingParams``; not modified.
    """
    generator.drawn[prompt] += 1
    mine = copy(params)
    mine.seed = seed_of(generator, prompt)
    if name := environments_by_prompt(generator.args).get(prompt):
        mine.extra_args = {**(mine.extra_args or {}), KEY: name}
    if generator.greedy_sample is not None:
        mine = greedy.marked(mine, generator.greedy_sample)
    if not generator.stage.startswith("train"):
        return mine
    if generator.args.partial_rollouts:
        mine = continued.continuable(mine)
    return routing.recorded(mine) if generator.records_routing else mine


def seed_of(generator: SamplesGenerator, prompt: str) -> int:
    """Return the seed of the prompt's latest draw; its samples use this seed, the next one, and so on."""
    text = f"{generator.args.seed} {generator.stage} {generator.drawn[prompt]} {prompt}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def in_order(generator: SamplesGenerator, samples: list[Sample]) -> list[Sample]:
    """Return the samples of a batch in the order of their groups.

    They arrive in the order in which engines finish, which would otherwise decide micro-batches and optimizer steps.

    Args:
        samples: ``Experience`` of one sample each; samples of a group stay next to each other.
    """
    return sorted(samples, key=places(generator))


def places(generator: SamplesGenerator) -> Callable[[Sample], int]:
    """Return what says where a sample's group stands in the order in which prompts were drawn; carried ones are first.

    With PARTIAL_ROLLOUTS, a batch has groups of several steps, whose numbers the run counts.
    """
    if generator.args.partial_rollouts and generator.stage.startswith("train"):
        return lambda sample: sample.number
    order = {prompt: number for number, prompt in enumerate(generator.drawn)}
    return lambda sample: order.get(sample.prompts[0], -1)
