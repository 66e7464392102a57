"""The rung about generation: seconds per pass of an engine at full size with random weights, eager and with graphs.

The time of a pass is the difference of two calls of different length, divided by the tokens between them. Prompts are
in the prefix cache. As in a run, the adapter's side path is in the layers, and each request has its own seed.
"""

import asyncio
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.model.architecture import Architecture
from grpo.model.released import RELEASED
from grpo.stack.problem import UserError
from scripts.gpu_check import full_size
from scripts.gpu_check.rung import Passed, note

SEQUENCES = (1, 8, 32, 64)
EAGER, GRAPHS = "eager", "graphs"
UTILIZATION = 0.9  # GPU_MEMORY_UTILIZATION's default
WORKER = "scripts.gpu_check.speed_worker.SpeedWorker"
_BESIDE = 6e9  # bytes of an engine beside its weights: a cache for the longest calls, activations, CUDA


@dataclass(frozen=True)
class Lengths:
    """Tokens of a prompt, and of the two responses whose times are compared."""

    prompt: int = 512
    short: int = 16
    long: int = 112


def check(gpus: int) -> Passed:
    """Measure the largest model that one GPU holds."""
    import torch

    del gpus
    name = full_size.fitting(full_size.memory_of_gpu(), compute_needed)
    return measure_ways(name.rpartition("/")[2], RELEASED[name], torch.cuda.get_device_name(0))


def compute_needed(shape: Architecture) -> float:
    """Return the bytes of a GPU that an engine of this model needs."""
    return (sum(shape.actor_bytes(packed=True).values()) + _BESIDE) / UTILIZATION


def measure_ways(
    model: str,
    shape: Architecture,
    gpu: str,
    ways: Sequence[str] = (EAGER, GRAPHS),
    sequences: Sequence[int] = SEQUENCES,
    lengths: Lengths = Lengths(),
) -> Passed:
    """Start an engine each way, and time its passes.

    Args:
        model, gpu: their names, for the report.
        shape: of the model; with ``mxfp4``, its experts are packed, which vLLM on a CPU does not support.
        sequences: numbers of sequences that are decoded at once.
    """
    numbers: dict[str, Any] = {"model": model, "gpu": gpu}
    for name in ("decode_s", "start_s", "cache_tokens", "memory_gb"):
        numbers[name] = {}  # by way
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), shape)
        for way in ways:
            begin = time.perf_counter()
            with start_engine(Path(folder), way, sequences, lengths) as engine:
                numbers["start_s"][way] = time.perf_counter() - begin
                for name, value in engine.describe().items():
                    numbers[name][way] = value
                if way == EAGER:
                    numbers["distinct_experts"] = engine.distinct_experts(max(sequences), shape)
                numbers["decode_s"][way] = {}
                for count in sequences:
                    numbers["decode_s"][way][str(count)] = engine.seconds_per_pass(count)
                    note(**numbers)  # graphs may fail
    return Passed(_line(numbers, shape), numbers)


def write_model(folder: Path, shape: Architecture) -> None:
    """Write configuration and tokenizer of a model without weights."""
    from transformers import AutoTokenizer

    from benchmarks.parts.random_model import write_model_config
    from scripts.tiny_model.tokenizer import STOP_TOKENS, write_tokenizer

    write_tokenizer(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    write_model_config(folder, shape, tokenizer.convert_tokens_to_ids(list(STOP_TOKENS)))


class Engine:
    """A running engine, with as many prompts as it decodes at once.

    Attributes:
        actor: OpenRLHF's, around vLLM's engine.
        loop: in which it works.
    """

    def __init__(self, actor: Any, loop: asyncio.Runner, prompts: Sequence[list[int]], lengths: Lengths) -> None:
        self.actor, self.loop, self._prompts, self._lengths = actor, loop, prompts, lengths

    def describe(self) -> dict[str, float]:
        """Return the tokens of the cache and the memory in use."""
        [described] = self.call("describe")
        needed = len(self._prompts) * (self._lengths.prompt + self._lengths.long)
        if described["cache_tokens"] < needed:
            raise UserError(f"the cache holds {described['cache_tokens']:,} tokens; the measurement needs {needed:,}")
        return dict(described)

    def distinct_experts(self, count: int, shape: Architecture) -> float:
        """Return how many experts of a layer a pass of this many sequences reads, on average over the layers.

        Raises:
            UserError: if they are fewer than half of what independent choices would give.
        """
        self.generate(count, self._lengths.short)  # with the prompts in the prefix cache, all are decoded at once
        self.call("watch_routers", count)
        self.generate(count, self._lengths.short)
        [of_layers] = self.call("distinct_experts")
        if not of_layers:
            raise UserError(f"no pass had {count} sequences at once")
        found = sum(of_layers) / len(of_layers)
        independent = shape.experts * (1 - (1 - shape.experts_per_token / shape.experts) ** count)
        if found < independent / 2:
            raise UserError(
                f"{count} sequences choose {found:.1f} of {shape.experts} experts a layer, but independent ones "
                f"{independent:.0f}: passes with these weights would look too fast",
                "report it: the random weights do not tell tokens apart",
            )
        return found

    def seconds_per_pass(self, count: int) -> float:
        """Return the seconds in which each of this many sequences gets a token."""
        lengths = self._lengths
        self.generate(count, lengths.short)  # compiles kernels for this size, and fills the prefix cache
        short, long = (self.generate(count, tokens) for tokens in (lengths.short, lengths.long))
        return (long - short) / (lengths.long - lengths.short)

    def generate(self, count: int, tokens: int) -> float:
        """Let this many sequences grow by this many tokens; return the seconds.

        Raises:
            UserError: if a log-prob is not finite.
        """
        from vllm import SamplingParams

        from grpo.rollout.engine import ids_only

        async def draw() -> list[Any]:
            # As in a run, each sample has its own seed.
            params = [
                ids_only(SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=1.0, logprobs=0, seed=number))
                for number in range(count)
            ]
            pairs = zip(self._prompts, params, strict=False)
            return await asyncio.gather(*(self.actor.generate(*pair) for pair in pairs))

        begin = time.perf_counter()
        outputs = [result.outputs[0] for result in self.loop.run(draw())]
        seconds = time.perf_counter() - begin
        values = [at[token].logprob for one in outputs for token, at in zip(one.token_ids, one.logprobs, strict=True)]
        if len(values) != count * tokens or not all(map(math.isfinite, values)):
            raise UserError(f"{count} sequences of {tokens} tokens have log-probs that are not finite, or too few")
        return seconds

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every worker; return what they return."""
        return list(self.loop.run(self.actor.llm.collective_rpc(method, args=arguments)))


@contextmanager
def start_engine(folder: Path, way: str, sequences: Sequence[int], lengths: Lengths, **more: Any) -> Iterator[Engine]:
    """Start an engine, without Ray, by default with random weights.

    Args:
        more: other arguments of vLLM's engine, and ``load_format``.
    """
    import torch

    from benchmarks.parts.tiny_engine import start_engine
    from grpo.model.model_files import read_json

    most, longest = max(sequences), lengths.prompt + lengths.long + 1
    options: dict[str, Any] = {}
    if torch.cuda.is_available():
        options["gpu_memory_utilization"] = UTILIZATION
    options |= {"additional_config": {"lora_rank": 64, "lora_scale": 2.0}} | more
    actor = start_engine(folder, most, longest, eager=way == EAGER, worker_extension_cls=WORKER, **options)
    vocabulary = read_json(folder / "config.json")["vocab_size"]
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(vocabulary, (most, lengths.prompt), generator=generator).tolist()
    try:
        with asyncio.Runner() as loop:
            yield Engine(actor, loop, prompts, lengths)
    finally:
        actor.llm.shutdown()


def _line(numbers: dict[str, Any], shape: Architecture) -> str:
    parts = [
        f"{way} "
        + ", ".join(f"{1e3 * seconds:.1f}" for seconds in by_count.values())
        + f", {numbers['memory_gb'][way]:.1f} GB in use, cache of {numbers['cache_tokens'][way]:,} tokens"
        for way, by_count in numbers["decode_s"].items()
    ]
    counts = ", ".join(next(iter(numbers["decode_s"].values())))
    line = f"{numbers['model']}: ms a pass at {counts} sequences: {'; '.join(parts)}"
    if "distinct_experts" in numbers:
        line += f"; {numbers['distinct_experts']:.0f} of {shape.experts} experts a layer"
    return line
