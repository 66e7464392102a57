"""The check of generation: seconds per pass of an engine at full size with random weights, eager and with graphs.

The time of a pass is the difference of two calls of different length, divided by the tokens between them. Prompts are
in the prefix cache. As in a run, the adapter's side path is in the layers, and each request has its own seed.
"""

import asyncio
import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

from benchmarks.checks import Passed, note
from benchmarks.random_model import write_config
from grpo.model.architecture import Architecture
from grpo.stack.problem import UserError

SEQUENCES = (1, 8, 32, 64)
EAGER, GRAPHS, MARLIN = "eager", "graphs", "graphs with Marlin"
Answer = tuple[list[int], list[float]]  # sampled tokens, and their log-probs
_UTILIZATION = 0.9  # --vllm_gpu_memory_utilization's default
_WORKER = "benchmarks.engine_worker.SpeedWorker"
_BESIDE = 6e9  # bytes of an engine beside its weights: a cache for the longest calls, activations, CUDA


@dataclass(frozen=True)
class Lengths:
    """Tokens of a prompt, and of the two responses whose times are compared."""

    prompt: int = 512
    short: int = 16
    long: int = 112


def check(gpus: int) -> Passed:
    """Measure the largest model that one GPU holds."""
    from benchmarks import actor

    del gpus
    return measure_ways(*actor.choose_model(compute_needed), (EAGER, GRAPHS))


def compute_needed(shape: Architecture) -> float:
    """Return the bytes of a GPU that an engine of this model needs."""
    return (sum(shape.actor_bytes(packed=True).values()) + _BESIDE) / _UTILIZATION


def measure_ways(
    model: str, shape: Architecture, ways: Sequence[str], sequences: Sequence[int] = SEQUENCES,
    lengths: Lengths = Lengths(),
) -> Passed:  # fmt: skip
    """Start an engine each way, and time its passes with each of these numbers of sequences."""
    numbers: dict[str, Any] = {"model": model}
    numbers |= {name: {} for name in ("decode_s", "start_s", "cache_tokens", "memory_gb", "experts")}  # by way
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), shape)
        for way in ways:
            begin = time.perf_counter()
            with start_engine(Path(folder), max(sequences), lengths, way) as engine:
                described = engine.describe() | {"start_s": time.perf_counter() - begin, "decode_s": {}}
                for name, value in described.items():
                    numbers[name][way] = value
                if way == MARLIN and described["experts"] == "TRITON":
                    raise UserError("vLLM computes the experts with Triton's kernels, not with Marlin's")
                for count in sequences:
                    numbers["decode_s"][way][str(count)] = engine.seconds_per_pass(count)
                    note(**numbers)  # the next may fail
            times = describe_times(numbers["decode_s"][way])
            parts.append(f"{way} {times}, {described['memory_gb']:.1f} GB in use")
    return Passed(f"{model}: ms a pass at {', '.join(map(str, sequences))} sequences: {'; '.join(parts)}", numbers)


def describe_times(decode_s: dict[str, float]) -> str:
    """Return milliseconds of passes."""
    return ", ".join(f"{1e3 * seconds:.1f}" for seconds in decode_s.values())


class Engine:
    """A running engine: OpenRLHF's actor around vLLM's, the loop in which it works, and the prompts it decodes."""

    def __init__(self, actor: Any, loop: asyncio.Runner, prompts: Sequence[list[int]], lengths: Lengths) -> None:
        self.actor, self.loop, self._prompts, self._lengths = actor, loop, prompts, lengths

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the only worker."""
        [result] = self.loop.run(self.actor.llm.collective_rpc(method, args=arguments))
        return result

    def describe(self) -> dict[str, Any]:
        """Return the tokens of the cache, the memory in use, and what computes the experts."""
        described = self.call("describe")
        needed = len(self._prompts) * (self._lengths.prompt + self._lengths.long)
        if described["cache_tokens"] < needed:
            raise UserError(f"the cache holds {described['cache_tokens']:,} tokens; the measurement needs {needed:,}")
        return dict(described)

    def seconds_per_pass(self, count: int) -> float:
        """Return the seconds in which each of this many sequences gets a token."""
        lengths = self._lengths
        self.generate(count, lengths.short)  # compiles kernels for this size, and fills the prefix cache
        short, long = (self.generate(count, tokens) for tokens in (lengths.short, lengths.long))
        return (long - short) / (lengths.long - lengths.short)

    def generate(self, count: int, tokens: int) -> float:
        """Let this many sequences grow by this many tokens; return the seconds. Log-probs must be finite."""
        from vllm import SamplingParams

        from grpo.rollout.engine import ids_only

        async def draw() -> list[Any]:
            params = [
                ids_only(SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=1.0, logprobs=0, seed=number))
                for number in range(count)
            ]
            pairs = zip(self._prompts, params, strict=False)
            return await asyncio.gather(*(self.actor.generate(*pair) for pair in pairs))

        begin = time.perf_counter()
        outputs = self.loop.run(draw())
        seconds = time.perf_counter() - begin
        values = [value for output in outputs for value in read_answer(output.outputs[0])[1]]
        if len(values) != count * tokens or not all(map(math.isfinite, values)):
            raise UserError(f"{count} sequences of {tokens} tokens have log-probs that are not finite, or too few")
        return seconds


def read_answer(output: Any) -> Answer:
    """Return what vLLM has sampled."""
    ids = list(output.token_ids)
    return ids, [at[token].logprob for token, at in zip(ids, output.logprobs, strict=True)]


def make_actor(
    model: Path, samples: int, length: int, load_format: str = "dummy", eager: bool = True, **options: Any
) -> Any:
    """Return OpenRLHF's engine actor, without Ray: `llm` is vLLM's engine, in a process of its own, as in training.

    Args:
        samples: the number computed at a time, each with `length` tokens of prompt and response.
        load_format: vLLM's; "dummy" creates random weights, "auto" reads those in `model`.
        options: more arguments of vLLM's engine.
    """
    import vllm
    from openrlhf.trainer.ray.vllm_engine import LLMRayActor

    from grpo.rollout import engine

    arguments = vllm.AsyncEngineArgs(
        model=str(model), load_format=load_format, dtype="bfloat16", max_model_len=length, enforce_eager=eager,
        enable_prefix_caching=True, **engine.arguments(sequences=samples), **options,
    )  # fmt: skip
    actor = object.__new__(LLMRayActor.__ray_metadata__.modified_class)
    actor.llm = vllm.AsyncLLMEngine.from_engine_args(arguments)
    return actor


@contextmanager
def start_engine(folder: Path, sequences: int, lengths: Lengths, way: str = EAGER, **options: Any) -> Iterator[Engine]:
    """Start an engine, without Ray, by default with random weights; `options` are of :func:`make_actor`."""
    import torch

    from grpo.model.model_files import read_json

    given: dict[str, Any] = {"additional_config": {"lora_rank": 64, "lora_scale": 2.0}, "worker_extension_cls": _WORKER}
    if torch.cuda.is_available():
        given["gpu_memory_utilization"] = _UTILIZATION
    if way == MARLIN:
        given |= choose_marlin()
    length = lengths.prompt + lengths.long + 1
    actor = make_actor(folder, sequences, length, eager=way == EAGER, **given | options)
    vocabulary, generator = read_json(folder / "config.json")["vocab_size"], torch.Generator().manual_seed(0)
    prompts = torch.randint(vocabulary, (sequences, lengths.prompt), generator=generator).tolist()
    try:
        with asyncio.Runner() as loop:
            yield Engine(actor, loop, prompts, lengths)
    finally:
        actor.llm.shutdown()


def choose_marlin() -> dict[str, Any]:
    """Return arguments with which an engine takes Marlin's kernels for the experts instead of Triton's."""
    from vllm import AsyncEngineArgs

    if "moe_backend" in signature(AsyncEngineArgs).parameters:
        return {"moe_backend": "marlin"}
    os.environ["VLLM_MXFP4_USE_MARLIN"] = "1"  # vLLM 0.15, for all later engines of this process
    return {}
