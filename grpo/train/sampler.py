"""From prompts to rewarded rollouts: draws prompts, and makes rollouts of what the engines answer."""

import heapq
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

import ray
from openrlhf.datasets import PromptDataset
from tqdm import tqdm
from vllm import SamplingParams

from grpo.rollout.engine_calls import EngineCalls
from grpo.rollout.problem_files import read_problems
from grpo.rollout.rows import Sample
from grpo.rollout.stage import Stage
from grpo.run.parity_gate import ParityGate
from grpo.stack.upstream.arguments import Arguments
from grpo.stack.upstream.engine import EngineActor
from grpo.stack.upstream.tokenizer import Tokenizer
from grpo.stack.upstream.trainer import PromptLoader
from grpo.train import rollouts
from grpo.train.lengths import Schedule
from grpo.train.prefetch import Result
from grpo.train.rollout_filters import Step

logger = logging.getLogger("openrlhf.grpo.sampling")


@dataclass(frozen=True)
class SamplingOptions:
    """How the engines answer a prompt.

    Attributes:
        samples: rollouts of its group.
        max_new_tokens: of a response.
    """

    samples: int
    temperature: float
    max_new_tokens: int


def make_loaders(strategy: Any, tokenizer: Tokenizer) -> tuple[PromptLoader, PromptLoader | None]:
    """Return the loaders of the training problems, shuffled, and of the held-out ones, if there are any.

    Args:
        strategy: OpenRLHF's ``DeepspeedStrategy``.
    """
    args = strategy.args

    def load(file: str, shuffle: bool) -> PromptLoader:
        rows = read_problems(Path(file), args.input_key, args.label_key)[: int(args.max_samples)]
        problems = PromptDataset(rows, tokenizer, strategy, input_template=args.input_template)
        return cast(PromptLoader, strategy.setup_dataloader(problems, 1, True, shuffle, problems.collate_fn))

    return load(args.prompt_data, True), load(args.eval_dataset, False) if args.eval_dataset else None


class Sampler:
    """Draws the prompts of steps and evaluations, and makes rollouts of what the engines answer.

    Args:
        args: OpenRLHF's.
        engines: handles of the engines.
        train, held_out: loaders of the problems; ``held_out`` may be None.
        lengths: the limit on response length of each step.
        gate: compares engines and trainer, and needs the engines' choice of experts for it.

    Attributes:
        engine_calls: what the engines are asked.
    """

    def __init__(
        self,
        args: Arguments,
        tokenizer: Tokenizer,
        engines: list[EngineActor],
        train: PromptLoader,
        held_out: PromptLoader | None,
        lengths: Schedule,
        gate: ParityGate,
    ) -> None:
        self.args, self._tokenizer, self._lengths, self._gate = args, tokenizer, lengths, gate
        self._train, self._held_out = train, held_out
        self._prompts: Iterator[Any] | None = None
        self.engine_calls = EngineCalls(engines, tokenizer)

    def begin_step(self, step: int) -> Step:
        """Return the sampling of a global step.

        The first step seeds the order of the prompts: a process without a seed leaves the loader with a random one. A
        resumed run keeps the order of its checkpoint.
        """
        args = self.args
        if step == 1:
            self._train.sampler.generator.manual_seed(args.seed)
        return Step(
            args,
            step,
            self.engine_calls,
            records_routing=args.routing_replay or self._gate.is_due(),
            max_new_tokens=self._lengths.limit(step),
        )

    def sample_step(self, step: Step) -> Result:
        """Sample the batch of a step, or as much of it as the prompts of the episode suffice for."""
        args = self.args
        if self._prompts is None:
            self._prompts = iter(self._train)
        drawn = SamplingOptions(args.n_samples_per_prompt, args.temperature, step.max_new_tokens)
        samples, consumed, is_exhausted = self._sample(step, self._prompts, args.rollout_batch_size, drawn)
        if is_exhausted:
            self._prompts = None
        return samples, step.pass_rate() if args.dynamic_filtering else None, consumed, is_exhausted

    def restore_prompts(self) -> None:
        """Begin to draw where the loader's restored state says. Uses random numbers."""
        self._prompts = iter(self._train)

    def sample_held_out(self, stage: Stage, samples: int) -> list[Sample]:
        """Sample all held-out problems, `samples` times each."""
        assert self._held_out is not None
        drawn = SamplingOptions(samples, self.args.eval_temperature, self.args.generate_max_len)
        return self._sample(stage, iter(self._held_out), len(self._held_out), drawn)[0]

    def _sample(
        self, stage: Stage, prompts: Iterator[Any], groups: int, how: SamplingOptions
    ) -> tuple[list[Sample], int, bool]:
        """Return the rollouts of a batch, how many prompts were drawn for it, and whether they ran out before."""
        if self.args.vllm_enable_sleep:
            self.engine_calls.wake_up(["weights", "kv_cache"])
        result = self._fill(stage, prompts, groups, how)
        if self.args.vllm_enable_sleep:
            self.engine_calls.sleep()
        return result

    def _fill(
        self, stage: Stage, prompts: Iterator[Any], groups: int, how: SamplingOptions
    ) -> tuple[list[Sample], int, bool]:
        accepted, missing, prompts = stage.begin(prompts, groups)
        new = list(islice(prompts, missing))
        if len(new) < missing:
            stage.end(accepted, True)
            return [], 0, True
        consumed, is_exhausted = len(new), False
        references = self._send(stage, new, how)
        with tqdm(total=missing, desc=f"sampling: {stage.name}") as bar:
            while references:
                ready, references = stage.wait(references)
                for reference in ready:
                    kept = stage.keep(self._rollouts(ray.get(reference), how))
                    accepted += kept
                    bar.update(bool(kept))
                    if not kept:  # another prompt takes the place of the group
                        new = list(islice(prompts, 1))
                        is_exhausted = not new
                        consumed += len(new)
                        references += self._send(stage, new, how)
        accepted, is_exhausted = stage.end(accepted, is_exhausted)
        return stage.sort_samples(accepted), consumed, is_exhausted

    def _send(self, stage: Stage, problems: list[Any], how: SamplingOptions) -> list[Any]:
        """Send problems to the engines, each to the one with the fewest requests; return Ray's references."""
        params = SamplingParams(
            temperature=how.temperature,
            top_p=self.args.top_p,
            max_tokens=how.max_new_tokens,
            min_tokens=1,
            skip_special_tokens=False,
            logprobs=0,  # of the sampled tokens alone
        )
        loads = [(load, number) for number, load in enumerate(self.engine_calls.loads())] if problems else []
        heapq.heapify(loads)
        references = []
        for row in problems:
            _, [prompt], [label] = row[:3]
            load, number = heapq.heappop(loads)
            heapq.heappush(loads, (load + how.samples, number))
            call = {
                "prompt": prompt,
                "label": label,
                "sampling_params": stage.seed_params(params, prompt),
                "max_length": self.args.prompt_max_len + how.max_new_tokens,
                "num_samples": how.samples,
            }
            references.append(stage.send(self.engine_calls.engines[number], call))
        return references

    def _rollouts(self, responses: list[dict[str, Any]], how: SamplingOptions) -> list[Sample]:
        return [rollouts.build_rollout(each, self.args, self._tokenizer, how.max_new_tokens) for each in responses]
