"""Rollouts with a thinking budget that is not hit: OpenRLHF's single call, and ours, which is followed token by token.

The engine is vLLM's with a tiny model. Both ways get the same seeds and must give the same tokens, which is checked.
Samples alone in the engine must all agree. With many at a time nearly all must agree, since bf16 rounds differently
depending on the batch. Samples end at one of several stop tokens.
"""

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from grpo.rollout.engine import for_sample
from grpo.stack.problem import UserError
from scripts.bench.harness import Result, TimeDifference, Timing, time_in_turn
from scripts.bench.machine import Copy
from scripts.bench.parts.tiny_engine import PROMPT, TOKENS_A_SECOND, quiet, start_engine, write_model

EQUAL_SHARE = 0.9  # of samples in a batch
ALONE = 8  # samples


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=int, default=32, help="samples at once (default: 32)")
    parser.add_argument("--tokens", type=int, default=128, help="mean length of a sample (default: 128)")
    parser.add_argument("--repeat", type=int, default=20, help="timed rounds; the mean counts (default: 20)")
    parser.add_argument(
        "--most", type=float, default=0.03, help="additional share of time; the exit code is 1 if the 95%% interval is "
        "above it (default: 0.03)",
    )  # fmt: skip


def run(options: argparse.Namespace, copy: Copy) -> Result:
    del copy
    if options.samples < 1 or options.repeat < 2 or not 16 <= options.tokens <= 512:
        raise UserError(
            "an option is out of range",
            "--samples must be at least 1, --repeat 2, and --tokens from 16 to 512",
        )
    with tempfile.TemporaryDirectory(prefix="bench-rollout-") as scratch, quiet(), asyncio.Runner() as loop:
        tokenizer = write_model(Path(scratch))
        budget = 16 * options.tokens  # one sample in ten million is longer
        actor = start_engine(Path(scratch), options.samples, _length(budget))
        ways = _ways(actor, tokenizer, options, budget)
        try:
            calls: dict[str, Callable[[], object]] = {name: partial(_wait, loop, way) for name, way in ways.items()}
            timings = time_in_turn(calls, options.repeat)
            stock, ours = (_wait(loop, ways[name]) for name in ("stock", "ours"))
            alone = [_wait(loop, partial(ways[name], is_alone=True)) for name in ("stock", "ours")]
        finally:
            actor.llm.shutdown()
    check_alone(*alone)
    return result(options, stock, ours, timings)


def _wait(loop: asyncio.Runner, way: Callable[[], Any]) -> list[dict[str, Any]]:
    return loop.run(way())


def check_alone(stock: list[dict], ours: list[dict]) -> None:
    """Check that a budget that is not hit changes no token of a sample that is alone in the engine.

    Raises:
        RuntimeError: if it does.
    """
    for number, (one, two) in enumerate(zip(stock, ours, strict=True)):
        if one["observation_tokens"] != two["observation_tokens"]:
            raise RuntimeError(f"sample {number} has other tokens with a budget that is not hit, alone in the engine")


def result(options: argparse.Namespace, stock: list[dict], ours: list[dict], timings: dict[str, Timing]) -> Result:
    """Return the comparison of both ways of sampling, with a miss if the budget costs more than ``options.most``.

    Raises:
        RuntimeError: if too few samples are equal, or any hit its budget.
    """
    pairs = list(zip(stock, ours, strict=True))
    equal = sum(one["observation_tokens"] == two["observation_tokens"] for one, two in pairs) / len(pairs)
    hit = sum(sample["extra_logs"]["thinking_truncated"] for sample in ours)
    if equal < EQUAL_SHARE or hit:
        raise RuntimeError(f"{equal:.0%} of the samples are equal, and {hit:.0f} hit a budget that none should reach")
    tokens = sum(end - start for sample in ours for start, end in sample["action_ranges"])
    seconds = statistics.mean(timings["stock"].rounds)
    more = TimeDifference.of(timings["ours"].rounds, timings["stock"].rounds)
    processor = TimeDifference.of(timings["ours"].processor, timings["stock"].processor)
    least = max(more.low, processor.low) / seconds
    return Result(
        what=f"{options.samples} samples at a time, {tokens / options.samples:.0f} tokens each: a single call, and one "
        "with a thinking budget that is not hit",
        unit="s",
        stock=seconds,
        ours=seconds + more.mean,
        higher_is_better=False,
        details={
            "overhead": more.mean / seconds,
            "overhead_low": more.low / seconds,
            "overhead_high": more.high / seconds,
            "processor_overhead": processor.mean / seconds,
            "processor_overhead_low": processor.low / seconds,
            "processor_overhead_high": processor.high / seconds,
            "tokens_per_s": tokens / (seconds + more.mean),
            "equal_samples": equal,
        },
        extrapolation=(
            f"gpt-oss-120b with 32 samples at {TOKENS_A_SECOND} tokens a second each: "
            f"{processor.mean / tokens * TOKENS_A_SECOND * 32:.2%} of an engine actor's time more",
            "assumes that following a token takes the actor's process as long as here; the engine has its own",
        ),
        missed=f"a budget costs {least:.1%} more at least, {options.most:.1%} at most is wanted"
        if least > options.most
        else "",
    )


def _ways(actor: Any, tokenizer: Any, options: argparse.Namespace, budget: int) -> dict[str, Callable[..., Any]]:
    from openrlhf.utils.agent import SingleTurnAgentExecutor
    from vllm import SamplingParams

    from grpo.rollout.budget_executor import AgentExecutor
    from grpo.rollout.thinking_settings import environment

    params = SamplingParams(
        max_tokens=2 * budget + 16, min_tokens=1, seed=7, logprobs=0,
        stop_token_ids=list(range(len(tokenizer) // options.tokens)),  # the model's tokens are all about equally likely
    )  # fmt: skip

    async def rollout(executor: Any, is_alone: bool = False) -> list[dict[str, Any]]:
        samples = [for_sample(params, number) for number in range(options.samples)]
        length = _length(budget)
        if is_alone:
            return [await executor.execute(PROMPT, "4", one, length, tokenizer, actor) for one in samples[:ALONE]]
        return await asyncio.gather(
            *(executor.execute(PROMPT, "4", sample, length, tokenizer, actor) for sample in samples)
        )

    ours = AgentExecutor(environment(budget, budget, "harmony", ""))
    return {"stock": partial(rollout, SingleTurnAgentExecutor()), "ours": partial(rollout, ours)}


def _length(budget: int) -> int:
    return 2 * budget + 64
