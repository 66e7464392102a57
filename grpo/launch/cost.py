"""What a run costs: the judge's calls and tokens, and hours, each with its assumptions.

docs/gpu.md has their sources. Each is replaced by what gpu_check measured on this machine, where it did.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from grpo.launch.checks.machine import check_gpu_memory
from grpo.launch.config import Config
from grpo.launch.gpu_memory import needs
from grpo.launch.judge import RunJudge
from grpo.launch.plan import Plan
from grpo.model.architecture import Architecture
from grpo.model.footprint import DECODED_SEQUENCES, Cache
from grpo.model.released import RELEASED
from grpo.rollout.stage import count_greedy
from grpo.stack.checkout import GPU_REPORT
from grpo.stack.command import format_count
from grpo.train import optimizer_steps

Numbers = Mapping[str, Mapping[str, Any]]  # of gpu_check's checks that passed, by name
_LARGE = RELEASED["openai/gpt-oss-120b"]
# Of the judge, assumed: tokens of instructions, problem and gold answer; tokens of a reply, thoughts included; seconds.
_INSTRUCTIONS, _REPLY, _CALL = 1_000, 2_000, 30.0
_STEPS = 100  # if neither the data nor a flag says how many
# A pass of an engine. The first two follow from published passes with CUDA graphs on 8 H100s.
_READ = 1.67e12  # bytes per second of weights and cache
_LAYER = 65e-6  # seconds of a layer's kernels, however little they read
_REDUCES = 16e-6  # assumed: seconds of a layer's two all-reduces
_EAGER = 0.8e-3  # seconds in which the CPU launches a layer without graphs
_BETWEEN, _RAY = 1.6e-3, 2e-3  # seconds between passes of an engine, and those that Ray adds with several GPUs
_MEASURED_AT = 576  # tokens of a sequence in gpu_check's passes
# The update of gpt-oss-120b on one H100: seconds of a micro-batch, which unpacks the weights, and of a token.
_UPDATE = (1.1, 127e-6)
_FORWARD = 0.35  # share of the update's time that a pass without gradients takes


def describe(plan: Plan, config: Config, judge: RunJudge) -> list[str]:
    """Return lines for people. If the data are not known, they are for the steps asked for, or for 100 steps."""
    steps = plan.steps if plan.steps is not None else config.args.max_steps or _STEPS
    return [*_describe_calls(plan, config, judge, steps), *_describe_hours(plan, config, judge, steps)]


def _describe_calls(plan: Plan, config: Config, judge: RunJudge, steps: int) -> list[str]:
    if judge.settings is None or judge.is_stand_in:
        return []
    calls = steps * plan.rollouts_per_step
    prompts, replies = calls * (_INSTRUCTIONS + config.args.generate_max_len) / 1e6, calls * _REPLY / 1e6
    return [
        f"judge cost  {format_count(calls, 'call')} in {format_count(steps, 'step')}, plus failed tries",
        f"            up to {prompts:,.1f} million prompt tokens: responses of --generate_max_len, and "
        f"{_INSTRUCTIONS:,} tokens for each problem and the instructions (assumed)",
        f"            {replies:,.1f} million reply tokens: {_REPLY:,} per call (assumed)",
    ]


def _describe_hours(plan: Plan, config: Config, judge: RunJudge, steps: int) -> list[str]:
    """Return [] for a model without a size, for CPUs, for what does not fit, and for data without a step."""
    args, model, need = config.args, plan.architecture, needs(config)
    if not steps or model is None or need is None or list(check_gpu_memory(config)):
        return []
    numbers = read_report()
    sequences = math.ceil(config.rollouts_per_step / args.vllm_num_engines)
    at_once = max(1, min(sequences, need.at_once, DECODED_SEQUENCES))
    token = time_pass(model, args.vllm_tensor_parallel_size, args.enforce_eager, at_once, need.length, numbers)
    sampling = token * args.generate_max_len * math.ceil(sequences / at_once)
    judging = 0.0
    if judge.settings:
        chain = judge.settings.chain
        judging = min(chain.deadline, math.ceil(config.rollouts_per_step / chain.concurrency) * _CALL)
    update = time_update(config, model, numbers)
    step = sampling + judging + update
    if args.pipeline:  # all work at the same time, and a batch passes through them in two steps
        step = max(sampling, update, step / 2)
    if plan.evals and plan.eval_prompts and plan.steps:
        samples = plan.eval_prompts * (args.eval_n_samples_per_prompt + count_greedy(args.eval_temperature))
        batches = math.ceil(math.ceil(samples / args.vllm_num_engines) / DECODED_SEQUENCES)
        step += plan.evals / plan.steps * token * args.generate_max_len * batches
    asked = f"{_CALL:.0f} s a call of the judge (assumed), " if judge.settings else ""
    of_engine, of_layer = ("measured" if name in numbers else "calculated" for name in ("engine speed", "layer"))
    return [
        f"hours       {steps * step / 3600:,.1f} for {format_count(steps, 'step')} of {step:,.0f} s, if every response "
        "reaches the length limit:",
        f"            {1e3 * token:.0f} ms a token with {at_once} rollouts per engine ({of_engine}), {asked}"
        f"{update:.0f} s an update ({of_layer}; see docs/gpu.md)",
    ]


def read_report() -> Numbers:
    """Return what gpu_check measured on this machine; {} if it did not, or if its report cannot be read."""
    try:
        checks = json.loads(GPU_REPORT.read_text(encoding="utf-8"))["checks"]
        return {check["name"]: check["numbers"] for check in checks if check["verdict"] == "passed"}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def time_pass(model: Architecture, width: int, eager: bool, sequences: int, tokens: int, numbers: Numbers) -> float:
    """Return the seconds of an engine's pass for this many sequences, on average half as long as their limit."""
    measured, factor = numbers.get("engine speed", {}), 1.0
    if passes := measured.get("decode_s", {}).get("eager" if eager else "graphs"):
        nearest = min(passes, key=lambda count: abs(int(count) - sequences))
        shape = RELEASED[f"openai/{measured['model']}"]
        factor = passes[nearest] / _calculate_pass(shape, 1, eager, int(nearest), _MEASURED_AT)
    return factor * _calculate_pass(model, width, eager, sequences, tokens // 2)


def _calculate_pass(model: Architecture, width: int, eager: bool, sequences: int, tokens: int) -> float:
    sizes = model.actor_bytes(model.mxfp4)
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    others = sum(sizes.values()) - experts - sizes["model.embed_tokens.weight"]
    chosen = 1 - (1 - model.experts_per_token / model.experts) ** sequences  # few sequences choose some of them only
    read = (chosen * experts + others) / width + sequences * Cache(model, width).bytes(tokens)
    computed = model.layers * (_LAYER + (_REDUCES if width > 1 else 0.0)) + read / _READ
    launched = model.layers * _EAGER if eager else 0.0
    return max(computed, launched) + _BETWEEN + (_RAY if width > 1 else 0.0)


def fit_update(layer: Mapping[str, Any]) -> tuple[float, float]:
    """Return the seconds of a micro-batch and of a token, given the numbers of gpu_check's check "layer"."""
    seconds = [_LARGE.layers * t + s for t, s in zip(layer["train_s"], layer["scores_s"], strict=True)]
    of_token = (seconds[-1] - seconds[0]) / (layer["tokens"][-1] - layer["tokens"][0])
    return seconds[0] - layer["tokens"][0] * of_token, of_token


def time_update(config: Config, model: Architecture, numbers: Numbers) -> float:
    """Return the seconds of a step's passes on a rank of the actor."""
    args, layers = config.args, model.layers / _LARGE.layers
    of_batch, of_token = fit_update(numbers["layer"]) if "layer" in numbers else _UPDATE
    passes = args.max_epochs + _FORWARD * (optimizer_steps.share_of_old_pass(args) + (args.init_kl_coef > 0))
    unpacking = of_batch * model.experts / _LARGE.experts / args.micro_train_batch_size
    of_rollout = layers * (unpacking + of_token * config.max_model_len)
    return float(passes * config.rollouts_per_step / config.actor_ranks * of_rollout)
