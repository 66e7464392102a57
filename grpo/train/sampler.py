"""From prompts to rewarded rollouts: draws prompts, lets the engines answer them, and checks what comes back."""

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

import ray
from openrlhf.datasets import PromptDataset
from tqdm import tqdm
from vllm import SamplingParams

from grpo.rollout.problem_files import read_rows
from grpo.rollout.rows import Sample
from grpo.rollout.stage import Stage
from grpo.run.parity_gate import ParityGate
from grpo.stack.upstream import Arguments, EngineActor, PromptLoader, Tokenizer
from grpo.train.lengths import Schedule
from grpo.train.rollout_filters import Drawn, Step
from grpo.train.rollouts import build_rollout

_POLL_SECONDS = 0.1  # between two polls whether the engines have sampled all and only wait for rewards


@dataclass(frozen=True)
class SamplingOptions:
    """How the engines answer a prompt."""

    samples: int  # rollouts of its group
    temperature: float
    max_new_tokens: int  # of a response


@dataclass(frozen=True)
class Request:
    """A prompt that an engine answers."""

    engine: int  # its number
    seed: int | None


def make_loaders(strategy: Any, tokenizer: Tokenizer) -> tuple[PromptLoader, PromptLoader | None]:
    """Return the loaders of the training problems, shuffled, and of the held-out ones, if there are any.

    Args:
        strategy: OpenRLHF's ``DeepspeedStrategy``.
    """
    args = strategy.args

    def load(file: str, shuffle: bool) -> PromptLoader:
        # int, because the default of OpenRLHF's flag is the float 1e8
        rows = [row for _, row in read_rows(Path(file), args.input_key, args.label_key)][: int(args.max_samples)]
        problems = PromptDataset(rows, tokenizer, strategy, input_template=args.input_template)
        return cast(PromptLoader, strategy.setup_dataloader(problems, 1, True, shuffle, problems.collate_fn))

    return load(args.prompt_data, True), load(args.eval_dataset, False) if args.eval_dataset else None


class Sampler:
    """Samples for steps and evaluations.

    Args:
        train, held_out: loaders of the problems.
        lengths: the limit on response length of each step.
        gate: compares engines and trainer, and needs the engines' choice of experts for it.
    """

    def __init__(
        self,
        args: Arguments,
        tokenizer: Tokenizer,
        engines: Sequence[EngineActor],
        train: PromptLoader,
        held_out: PromptLoader | None,
        lengths: Schedule,
        gate: ParityGate,
    ) -> None:
        self.args, self._tokenizer, self._engines, self._lengths, self._gate = args, tokenizer, engines, lengths, gate
        self._train, self._held_out = train, held_out
        self._prompts: Iterator[Any] | None = None

    def begin_step(self, step: int, sampled: threading.Event | None = None) -> Step:
        """Return the sampling of a global step, which sets `sampled` once its rollouts only wait for rewards.

        The first step seeds the order of the prompts: a process without a seed leaves the loader with a random one. A
        resumed run keeps the order of its checkpoint.
        """
        args = self.args
        if step == 1:
            self._train.sampler.generator.manual_seed(args.seed)
        records_routing = args.routing_replay or self._gate.is_due()
        stage = Step(args, step, records_routing=records_routing, max_new_tokens=self._lengths.limit(step))
        stage.sampled = sampled
        return stage

    def sample_step(self, step: Step) -> Drawn:
        """Sample the batch of a step, or as much of it as the prompts of the episode suffice for."""
        args = self.args
        if self._prompts is None:
            self._prompts = iter(self._train)
        how = SamplingOptions(args.n_samples_per_prompt, args.temperature, step.max_new_tokens)
        prompts = self._sample(step, self._prompts, how, args.rollout_batch_size, step.count_allowed())
        drawn = step.finish(prompts)
        if drawn.is_over:
            self._prompts = None
        return drawn

    def restore_prompts(self) -> None:
        """Begin to draw where the loader's restored state says. Uses random numbers."""
        self._prompts = iter(self._train)

    def sample_held_out(self, stage: Stage, samples: int) -> list[Sample]:
        """Sample all held-out problems, `samples` times each."""
        assert self._held_out is not None
        how = SamplingOptions(samples, self.args.eval_temperature, self.args.generate_max_len)
        self._sample(stage, iter(self._held_out), how, len(self._held_out))
        return stage.list_rollouts()

    def _sample(
        self, stage: Stage, prompts: Iterator[Any], how: SamplingOptions, groups: int, most: float = math.inf
    ) -> int:
        """Draw prompts until the stage has so many groups, the prompts run out, or `most` are drawn.

        Each group that the stage leaves out is replaced at once. Returns how many prompts were drawn: none, if there
        are too few for a first attempt. The last prompts of an episode are left out if they do not fill a batch.
        """
        if self.args.vllm_enable_sleep:
            self.wake_up(["weights", "kv_cache"])
        pending: dict[Any, Request] = {}  # by Ray's reference of the answer
        drawn = 0
        with tqdm(total=groups, initial=len(stage.kept), desc=f"sampling: {stage.name}") as bar:
            while True:
                # As many prompts in flight as the batch lacks groups: a group that is left out is replaced at once.
                wanted = int(min(groups - len(stage.kept) - len(pending), most - drawn))
                new = list(islice(prompts, wanted))
                if drawn or len(new) == wanted:  # otherwise the rest of the episode is too small for a batch
                    pending |= self._send(stage, new, how)
                    drawn += len(new)
                if not pending:
                    break
                for reference in self._wait(pending, stage):
                    del pending[reference]
                    responses = ray.get(reference)  # raises if the engine has died
                    limit = how.max_new_tokens
                    stage.add([build_rollout(each, self.args, self._tokenizer, limit) for each in responses])
                    bar.update(len(stage.kept) - bar.n)
        if self.args.vllm_enable_sleep:
            ray.get([engine.sleep.remote() for engine in self._engines])
        return drawn

    def _send(self, stage: Stage, problems: list[Any], how: SamplingOptions) -> dict[Any, Request]:
        """Send each problem to the engine with the fewest unfinished requests; return what ``_sample`` waits for."""
        if not problems:
            return {}
        params = SamplingParams(
            temperature=how.temperature,
            top_p=self.args.top_p,
            max_tokens=how.max_new_tokens,
            min_tokens=1,  # a rollout without a sampled token takes no part in the update
            skip_special_tokens=False,  # the channels of harmony are special tokens
            logprobs=0,  # of the sampled tokens alone
        )
        loads = ray.get([engine.get_num_unfinished_requests.remote() for engine in self._engines])
        sent = {}
        for row in problems:
            _, [prompt], [label] = row[:3]  # OpenRLHF 0.11.2 adds images
            number = loads.index(min(loads))
            loads[number] += how.samples
            seeded = stage.seed_params(params, prompt)
            reference = self._engines[number].generate_responses.remote(
                prompt=prompt,
                label=label,
                sampling_params=seeded,
                max_length=self.args.prompt_max_len + how.max_new_tokens,
                num_samples=how.samples,
                hf_tokenizer=self._tokenizer,
            )
            sent[reference] = Request(number, seeded.seed)
        return sent

    def _wait(self, pending: dict[Any, Request], stage: Stage) -> list[Any]:
        """Wait for the rollouts of a prompt, for some seconds at most; return the references that are ready.

        ``stage.sampled``, if there is one, is set once the engines have sampled all prompts and only wait for rewards.
        """
        is_polled = stage.sampled is not None and not stage.sampled.is_set()
        ready, _ = ray.wait(list(pending), num_returns=1, timeout=_POLL_SECONDS if is_polled else 10.0)
        if stage.sampled is not None and is_polled and not ready:
            engines = [self._engines[number] for number in sorted({request.engine for request in pending.values()})]
            seeds = {seed for sampled in ray.get([engine.sampled.remote() for engine in engines]) for seed in sampled}
            if seeds.issuperset(request.seed for request in pending.values()):
                stage.sampled.set()
        return list(ready)

    def wake_up(self, tags: Sequence[str]) -> None:
        """Give engines that share GPUs their memory back, for their "weights" or "kv_cache"."""
        ray.get([engine.wake_up.remote(tags=list(tags)) for engine in self._engines])
