"""The seed of every sample, from run, step and prompt, and the order of a batch."""

import hashlib
from collections import Counter
from copy import copy
from typing import Any

FIRST_STAGE = "train 1"


def samples_a_prompt(args: Any, generate_kwargs: dict[str, Any]) -> int:
    """Return how many samples a prompt gets: the call's own number (an evaluation has one), else that of training."""
    return generate_kwargs.get("n_samples_per_prompt", args.n_samples_per_prompt)


def begin_stage(generator: Any, name: str) -> None:
    """Name what is sampled from here on, for instance "train 7" or "eval 10": the seeds follow from it.

    The first step seeds the order of the prompts, too, for which the loader has drawn a seed of its own in a process
    without one; what is resumed goes on in the order of its checkpoint.

    Args:
        generator: OpenRLHF's ``SamplesGenerator``.
    """
    if getattr(generator, "stage", None) != name:  # a step that goes on in the next episode continues its stage
        generator.stage, generator.drawn = name, Counter()
        if name == FIRST_STAGE:
            generator.prompts_dataloader.sampler.generator.manual_seed(generator.args.seed)


def seeded(generator: Any, params: Any, prompt: str) -> Any:
    """Return sampling parameters whose seed follows from the run's seed, the stage and the prompt.

    So a step that is done again after a resume samples the same responses, whichever engine gets the prompt and in
    whichever order. A prompt that a stage draws twice gets other samples the second time.

    Args:
        generator: OpenRLHF's ``SamplesGenerator``, after :func:`begin_stage`.
        params: vLLM's ``SamplingParams``; stays as it is.
    """
    generator.drawn[prompt] += 1
    mine = copy(params)
    mine.seed = seed_of(generator, prompt)
    return mine


def seed_of(generator: Any, prompt: str) -> int:
    """Return the seed of the prompt's latest draw; its samples have this one, the next, and so on."""
    text = f"{generator.args.seed} {generator.stage} {generator.drawn[prompt]} {prompt}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def in_order(generator: Any, samples: list[Any]) -> list[Any]:
    """Return the samples of a batch in the order in which their prompts were drawn, carried ones first.

    They come back in the order in which engines finish, from which micro-batches and optimizer steps would follow.

    Args:
        samples: ``Experience`` of one sample each; those of a group stay next to each other.
    """
    place = {prompt: number for number, prompt in enumerate(generator.drawn)}
    return sorted(samples, key=lambda sample: place.get(sample.prompts[0], -1))
