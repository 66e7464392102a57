"""The seconds of a step, phase by phase: from the figures that scripts.gpu_check measured here, or from stated ones.

The actor's are of gpt-oss-120b. Time per token scales with the layers, time per rollout with the experts' weights too.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo.launch import decoding, equal_nodes, gpu_memory
from grpo.launch.config import Config
from grpo.launch.decoding import LARGE, Engine, Factors
from grpo.launch.judge import RunJudge
from grpo.launch.plan import WEIGHT_BYTES, Plan
from grpo.model.architecture import PACKED, ZERO3, Architecture
from grpo.model.sizes import DECODED_SEQUENCES
from grpo.rollout import greedy
from grpo.stack.checkout import GPU_REPORT
from grpo.stack.machine import GB
from grpo.update import old_policy

# Whose a phase is. With PIPELINE=1 the judge delays no one; between steps all wait.
ENGINES, JUDGE, ACTOR, BETWEEN = "engines", "judge", "actor", "between"
INSTRUCTIONS = 1_000  # assumed: tokens of the judge's instructions, problem and gold answer
_CALL = (20, 30, 40)  # assumed: seconds of a call of the judge, at least, as expected, and at most
_COPIES = 1e9  # assumed: bytes per second of an adapter to the engines, and of a checkpoint to its disk
_OLD, _REFERENCE, _TRAINING = "old log-probs", "reference", "training"
_GATHERS = {_OLD: 1, _REFERENCE: 1, _TRAINING: 2}  # of the weights: forward, backward
NETWORK = 50.0  # assumed: GB/s between nodes, into each of them (400 Gb/s)
_HOST_COPIES = 25.0  # assumed: GB/s of pinned memory to a GPU, over PCIe 5


@dataclass(frozen=True)
class Line:
    """Seconds of a rollout on one GPU: a fixed part, which unpacks weights, and a part for each token."""

    of_rollout: float
    of_token: float

    @classmethod
    def through(cls, lengths: Sequence[int], seconds: Sequence[float]) -> "Line":
        """Return the line through the first and the last length."""
        of_token = (seconds[-1] - seconds[0]) / (lengths[-1] - lengths[0])
        return cls(seconds[0] - lengths[0] * of_token, of_token)


@dataclass(frozen=True)
class Rates:
    """What a GPU does with gpt-oss-120b, and how far off that may be.

    Attributes:
        source: where the figures are from.
        low, high: factors on the times of the update.
        longest: tokens up to which times were measured.
        gather: GB/s of each GPU in an all-gather.
        gather_source: where that is from.
        host: GB/s of pinned memory to a GPU.
        decoding: of the engines.
    """

    source: str
    train: Line
    old: Line
    low: float
    high: float
    longest: int
    gather: float = 200.0
    gather_source: str = "assumes 200 GB/s"
    host: float = _HOST_COPIES
    decoding: Factors = field(default_factory=dict)

    @classmethod
    def from_docs(cls, why: str = "") -> "Rates":
        """Return the figures of docs/gpu.md: 16 rollouts of two lengths on one H100, and an assumed range."""
        lengths = (4_096, 16_384)
        return cls(
            "calculated from one H100, see docs/gpu.md; range assumed" + (f"; {why}" if why else ""),
            Line.through(lengths, (26 / 16, 51 / 16)),
            Line.through(lengths, (7 / 16, 18 / 16)),
            low=0.8,
            high=1.5,
            longest=lengths[-1],
        )

    @classmethod
    def from_layer(cls, numbers: Mapping[str, Any]) -> "Rates":
        """Return what one layer predicts, given the numbers of gpu_check's rung "layer".

        On an H100, two layers and lm_head through DeepSpeed took 0.92 to 1.29 times the sum of their parts.
        """
        parts = zip(numbers["train_s"], numbers["forward_s"], numbers["scores_s"], strict=True)
        train, old = zip(*((LARGE.layers * t + s, LARGE.layers * f + s) for t, f, s in parts), strict=True)
        lengths = numbers["tokens"]
        lines = Line.through(lengths, train), Line.through(lengths, old)
        return cls("measured on this machine", *lines, low=0.9, high=1.3, longest=lengths[-1])

    @classmethod
    def from_report(cls, report: Path = GPU_REPORT) -> "Rates":
        """Return the figures of gpu_check's report; those that it lacks are the stated ones."""
        try:
            rungs = json.loads(report.read_text(encoding="utf-8"))["rungs"]
            numbers = {rung["name"]: rung["numbers"] for rung in rungs if rung["verdict"] == "passed"}
            rates = cls.from_layer(numbers["layer"]) if "layer" in numbers else cls.from_docs()
            if "all-reduce" in numbers:
                measured = float(numbers["all-reduce"]["all_gather_gb_per_s"])
                rates = replace(rates, gather=measured, gather_source=f"measured {measured:.0f} GB/s")
            if "engine speed" in numbers:
                rates = replace(rates, decoding=decoding.factors(numbers["engine speed"]))
            if "host copies" in numbers:
                rates = replace(rates, host=float(numbers["host copies"]["to_device_gb_per_s"]))
        except FileNotFoundError:
            return cls.from_docs()
        except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
            return cls.from_docs(f"{report} cannot be used ({type(error).__name__}: {error})")
        return rates


@dataclass(frozen=True)
class Phase:
    """A part of a step in seconds: what is expected, at least, at most; from what that follows; and whose it is."""

    name: str
    seconds: float
    low: float
    high: float
    source: str
    whose: str = ACTOR


def phases(plan: Plan, config: Config, judge: RunJudge, rates: Rates) -> Iterator[Phase]:
    """Yield the phases of a step in which every rollout has the longest length, for a plan with an architecture."""
    assert plan.architecture is not None
    yield sampling(config, plan.architecture, rates)
    yield from _judging(config, judge)
    yield from _passes(config, plan.architecture, rates)
    yield from _gathers(config, plan.architecture, rates)
    yield from _time_between_steps(plan, config, rates)


def sampling(config: Config, model: Architecture, rates: Rates) -> Phase:
    """Return the phase of the engines."""
    args, rollouts = config.args, config.rollouts_per_step
    engine, seconds = _decode(config, model, rates, rollouts)
    low, high = engine.unsure
    way = "eager" if args.enforce_eager else "CUDA graphs"
    source = (
        f"{1000 * seconds / args.generate_max_len:.0f} ms for each of {args.generate_max_len:,} tokens, "
        f"{math.ceil(rollouts / args.vllm_num_engines)} rollouts per engine, {way}; {engine.source}"
    )
    return Phase("sampling", seconds, low * seconds, high * seconds, source, ENGINES)


def _decode(config: Config, model: Architecture, rates: Rates, responses: int) -> tuple[Engine, float]:
    """Return an engine, and the seconds for this many of the longest responses on all engines."""
    args, need = config.args, gpu_memory.needs(config)
    width, rank = args.vllm_tensor_parallel_size, model.find_expert_rank(args)
    engine = Engine(model, width, args.enforce_eager, rates.decoding, rank)
    count, at_once = math.ceil(responses / args.vllm_num_engines), need.at_once if need else DECODED_SEQUENCES
    return engine, engine.seconds(count, at_once, args.prompt_max_len, args.generate_max_len)


def _judging(config: Config, judge: RunJudge) -> Iterator[Phase]:
    """Yield the judge's calls after the last token. An answer is judged when it ends, so they may be few."""
    if judge.settings is None:
        return
    chain, calls = judge.settings.chain, config.rollouts_per_step
    tokens = calls * (INSTRUCTIONS + config.args.generate_max_len)
    for_quota = chain.window * max((calls - 1) // chain.requests_per_window, tokens // chain.tokens_per_window)
    rounds = math.ceil(calls / chain.concurrency)
    least, expected, most = (
        min(chain.deadline, each) for each in (_CALL[0], *(rounds * s + for_quota for s in _CALL[1:]))
    )
    source = f"{calls} calls after the last token, {chain.concurrency} at once; assumes {_CALL[1]} s per call"
    waits_for_rewards = config.args.dynamic_filtering or config.args.partial_rollouts > 0
    yield Phase("judge", expected, least, most, source, ENGINES if waits_for_rewards else JUDGE)


def _time_between_steps(plan: Plan, config: Config, rates: Rates) -> Iterator[Phase]:
    """Yield what happens between steps, evaluations and checkpoints spread over all of them."""
    args = config.args
    saved = (plan.checkpoint_bytes or 0) / args.save_steps if args.save_steps > 0 else 0.0
    copies = ((plan.lora_parameters or 0) * WEIGHT_BYTES + saved) / _COPIES
    yield Phase("sync, checkpoint", copies, copies, 5 * copies, "assumes 1 GB/s", BETWEEN)
    if plan.architecture and plan.evals and plan.eval_prompts and plan.steps:
        samples = plan.eval_prompts * (args.eval_n_samples_per_prompt + greedy.answers(args.eval_temperature))
        engine, each = _decode(config, plan.architecture, rates, samples)
        share, (low, high) = plan.evals * each / plan.steps, engine.unsure
        source = f"{plan.evals} of {each:,.0f} s over {plan.steps} steps"
        yield Phase("evaluation", share, low * share, high * share, source, BETWEEN)


def _gathers(config: Config, architecture: Architecture, rates: Rates) -> Iterator[Phase]:
    args = config.args
    if args.actor_shard != ZERO3:
        return
    weights = sum(architecture.actor_bytes(args.experts == PACKED).values()) / GB
    count = sum(_GATHERS[name] * rollouts for name, rollouts in _rollouts(config).items())
    moved = count / args.micro_train_batch_size * weights
    if args.offload:
        copies = moved / config.actor_ranks / rates.host
        source = f"OFFLOAD=1 at {rates.host:.0f} GB/s; 0 if fully overlapped"
        yield Phase("copies from the host", copies, 0.0, copies, source)
    if config.actor_ranks == 1:
        return
    gathers = moved * (config.actor_ranks - 1) / config.actor_ranks / rates.gather
    source = rates.gather_source
    places = equal_nodes.choose_seats(config)
    between = moved * equal_nodes.compute_gathered_share(places) / NETWORK if places else 0.0
    if between > gathers:
        gathers, source = between, f"between nodes; assumes {NETWORK:.0f} GB/s into each"
    yield Phase("gathers", gathers, 0.0, gathers, f"{source}; 0 if fully overlapped")


def _passes(config: Config, architecture: Architecture, rates: Rates) -> Iterator[Phase]:
    """Yield the actor's passes."""
    layers = architecture.layers / LARGE.layers
    weights = layers * architecture.experts / LARGE.experts
    beyond = max(1.0, config.max_model_len / rates.longest)  # attention's time grows with the square of the length
    source = rates.source + (f"; beyond {rates.longest:,} tokens extrapolated" if beyond > 1 else "")
    for name, rollouts in _rollouts(config).items():
        line, batches = rates.train if name == _TRAINING else rates.old, rollouts / config.args.micro_train_batch_size
        seconds = batches * weights * line.of_rollout + rollouts * layers * line.of_token * config.max_model_len
        yield Phase(name, seconds, seconds * rates.low, seconds * rates.high * beyond, source)


def _rollouts(config: Config) -> dict[str, float]:
    """Return how many rollouts of a step a rank computes in each kind of pass that the run makes."""
    args = config.args
    shares = {
        _OLD: old_policy.share_of_old_pass(args),
        _REFERENCE: float(args.init_kl_coef > 0),
        _TRAINING: args.max_epochs,
    }
    return {name: share * config.rollouts_per_step / config.actor_ranks for name, share in shares.items() if share}
