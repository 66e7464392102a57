"""What the metrics of a step cost: to the engines, which give log-probs, to a trainer rank, and to the controller.

The training step uses OpenRLHF's own classes with our patches, in one process without DeepSpeed. Attention and experts
have the sizes of gpt-oss-120b, but there are few layers and experts. The clock runs inside the metrics, since the
difference of two steps would be noise. The controller gets the rank's notes. The engine is vLLM's with a tiny model, so
a token costs a fraction of what it costs with any other.
"""

import argparse
import asyncio
import pickle
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grpo.rollout.engine import ids_only
from grpo.stack.problem import UserError
from scripts.bench.harness import Result, TimeDifference, Timing, time_in_turn
from scripts.bench.machine import Copy
from scripts.bench.parts import step_worker, tiny_engine
from scripts.bench.parts.random_model import FULL
from scripts.bench.parts.ranks import run_ranks
from scripts.bench.step import add_sizes, write_models

LAYERS_120B = 36


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_sizes(parser)
    parser.add_argument("--tokens", type=int, default=256, help="tokens of the sequence (default: 256)")
    parser.add_argument(
        "--samples", type=int, default=32, help="samples that the engine computes at once (default: 32)"
    )
    parser.add_argument("--length", type=int, default=256, help="tokens of each sample (default: 256)")
    parser.add_argument("--rounds", type=int, default=10, help="timed rounds; the mean counts (default: 10)")
    parser.add_argument(
        "--most", type=float, default=0.01, help="share of a step; the exit code is 1 above it (default: 0.01)"
    )


def run(options: argparse.Namespace, copy: Copy) -> Result:
    del copy
    if min(options.samples, options.length) < 1 or options.rounds < 2 or options.tokens < 8:
        raise UserError(
            "an option is out of range",
            "--samples and --length must be at least 1, --rounds at least 2, and --tokens at least 8",
        )
    with tempfile.TemporaryDirectory(prefix="bench-metrics-") as scratch, tiny_engine.quiet():
        tokenizer, sampling = _sample(options, Path(scratch))
        job = {
            "model": str(write_models(options, Path(scratch))["ours"]), "package": None, "experts": "packed",
            "lora_rank": 64,
            "gradients": str(Path(scratch, "gradients.pt")), "notes": str(Path(scratch, "notes.pickle")),
            "vocabulary": options.vocabulary, "tokens": options.tokens, "repeat": options.repeat,
        }  # fmt: skip
        (measured,) = run_ranks("step_worker", 1, job)
        notes = pickle.loads(Path(job["notes"]).read_bytes())
        controller = _control(job, notes, tokenizer)
    return _result(options, measured, sampling, controller)


def _sample(options: argparse.Namespace, scratch: Path) -> tuple[Any, dict[str, Timing]]:
    """Return the tokenizer, and the times of sampling: stock's way, ours, and ours without log-probs ("silent")."""
    from vllm import SamplingParams

    folder = scratch / "tiny"
    folder.mkdir()
    with asyncio.Runner() as loop:
        tokenizer = tiny_engine.write_model(folder)
        prompt = tokenizer.encode(tiny_engine.PROMPT, add_special_tokens=False)
        actor = tiny_engine.start_engine(folder, options.samples, len(prompt) + options.length)

        async def sample(params: Any) -> None:
            await asyncio.gather(*(actor.generate(prompt, params) for _ in range(options.samples)))

        plain = SamplingParams(max_tokens=options.length, ignore_eos=True)
        known = SamplingParams(max_tokens=options.length, ignore_eos=True, logprobs=0)
        ways = {"stock": plain, "ours": ids_only(known), "silent": ids_only(plain)}
        try:
            timings = time_in_turn(
                {name: partial(lambda params: loop.run(sample(params)), params) for name, params in ways.items()},
                options.rounds,
            )
        finally:
            actor.llm.shutdown()
    return tokenizer, timings


def _control(job: dict[str, Any], notes: dict[str, Any], tokenizer: Any) -> float:
    """Return the seconds that the controller needs for the step's one sample: metrics and its record."""
    from openrlhf.trainer.ppo_utils.experience_maker import Experience

    from grpo.metrics.step_metrics import after_training
    from grpo.run.sample_records import describe_samples

    batch = step_worker.rollout(job)
    mask = batch["action_mask"]
    sample = Experience(
        index=[0], prompts=[tiny_engine.PROMPT], labels=["4"], rewards=torch.ones(1), rollout_log_probs=-mask.float(),
        info={"reward": torch.ones(1), "correct": torch.ones(1), "sample": torch.zeros(1)},
        **batch | {"sequences": batch["sequences"] % len(tokenizer)},
    )  # fmt: skip
    begin = time.perf_counter()
    status = dict(notes)
    after_training(status, [sample], [sample], step_worker.arguments(job), tokenizer)
    describe_samples([sample], tokenizer)
    if status["metric_errors"]:
        raise RuntimeError("the controller failed on what the rank has noted")
    return time.perf_counter() - begin


def _result(
    options: argparse.Namespace, measured: dict[str, Any], sampling: dict[str, Timing], controller: float
) -> Result:
    rounds = {
        name: [seconds / options.samples / options.length for seconds in timing.rounds]
        for name, timing in sampling.items()
    }
    more, against_stock = (TimeDifference.of(rounds["ours"], rounds[other]) for other in ("silent", "stock"))
    response = options.tokens * 3 // 4
    bare = measured["seconds"] - measured["collecting"]
    log_probs = max(0.0, more.mean)  # below 0 is noise, which must not offset the others
    costs = measured["collecting"] + controller + log_probs * response
    step = bare + statistics.mean(rounds["silent"]) * response
    # A token's work in the layers grows with their number, the metrics' work with the vocabulary rows.
    trainer = measured["collecting"] * FULL.vocabulary / options.vocabulary / (bare * LAYERS_120B / options.layers)
    engine = log_probs * 32 * tiny_engine.TOKENS_A_SECOND
    share = costs / step
    return Result(
        what=f"metrics of a step on one sample of {options.tokens} tokens, {response} of them sampled by a tiny engine "
        f"({options.samples} at a time); {options.layers} layers of {options.experts} experts, {options.vocabulary} "
        "rows of vocabulary, gradient checkpointing",
        unit="s",
        stock=step,
        ours=step + costs,
        higher_is_better=False,
        details={
            "share_of_the_step": share,
            "trainer_seconds": measured["collecting"],
            "controller_seconds": controller,
            "log_probs_microseconds_a_token": 1e6 * log_probs,
            "log_probs_standard_error": 1e6 * more.error,
            "sampling_against_stock_microseconds_a_token": 1e6 * against_stock.mean,
            "sampling_against_stock_standard_error": 1e6 * against_stock.error,
        },
        extrapolation=(
            f"gpt-oss-120b: {trainer:.2%} of the training, {engine:.2%} of the sampling",
            f"assumes {LAYERS_120B} layers and {FULL.vocabulary} rows in proportion to the time measured here. A GPU's "
            "arithmetic is faster than this by more than its memory, on which the metrics depend; there offloaded "
            "layers are gathered, which takes most of a step and is left out here. Sampling: 32 samples at "
            f"{tiny_engine.TOKENS_A_SECOND} tokens a second each, with a processor's work of this machine; here that "
            "includes the softmax, which a GPU makes there",
        ),
        missed=f"the metrics take {share:.1%} of a step, {options.most:.1%} at most is wanted"
        if share > options.most
        else "",
    )
