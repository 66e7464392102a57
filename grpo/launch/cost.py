"""What a whole run costs: calls and tokens of the judge, and hours on H100s with their assumptions."""

from grpo.launch.config import Config
from grpo.launch.host_memory import is_for_gpus
from grpo.launch.judge import RunJudge
from grpo.launch.plan import Plan
from grpo.model.architecture import Architecture
from grpo.model.released import RELEASED

# docs/gpu.md, for 16 samples on each GPU of the 120b's actor: training and old log-probs take 33 s at 4096 tokens and
# 69 s at 16,384; gathers of ZeRO-3 take 11 s. So a sample takes a fixed time, which unpacks weights, and one per token.
_PER_TOKEN = (69 - 33) / 16 / (16_384 - 4_096)
_PER_SAMPLE = 33 / 16 - 4_096 * _PER_TOKEN
_GATHERS = 11 / 16
_MEASURED = RELEASED["openai/gpt-oss-120b"]
_STEPS = 100
_ENGINE_TOKENS = 1_000  # assumed: tokens per second of an engine
_INSTRUCTIONS = 1_000  # assumed: tokens of the judge's instructions, problem and gold answer


def describe(plan: Plan, config: Config, judge: RunJudge) -> list[str]:
    """Return lines for people. If the data are not known, they are for the steps asked for, or for 100 steps."""
    steps = plan.steps if plan.steps is not None else config.args.max_steps or _STEPS
    return [*_calls(plan, config, judge, steps), *_hours(plan, config, steps)]


def _calls(plan: Plan, config: Config, judge: RunJudge, steps: int) -> list[str]:
    if judge.settings is None:
        return []
    calls = steps * plan.samples_per_rollout
    tokens = calls * (_INSTRUCTIONS + config.args.generate_max_len)
    return [
        f"judge cost  {calls:,} calls in {steps:,} steps, plus failed tries; up to {tokens / 1e6:,.1f} million "
        "prompt tokens, if",
        f"            responses fill the limit and problem and instructions take {_INSTRUCTIONS:,} (assumed); a reply "
        f"has at most {judge.settings.chain.max_output_tokens:,}",
    ]


def _hours(plan: Plan, config: Config, steps: int) -> list[str]:
    args, architecture = config.args, plan.architecture
    if architecture is None or not is_for_gpus(architecture):
        return []
    update = seconds_of_update(config, architecture)
    tokens = plan.samples_per_rollout * args.generate_max_len
    sampling = tokens / (_ENGINE_TOKENS * args.vllm_num_engines)
    hours = steps * (update + sampling) / 3600
    return [
        f"hours       {hours:,.1f} for {steps:,} steps of {update + sampling:,.0f} s, if all responses fill the "
        "limit; without evaluations and saving",
        f"            update {update:,.0f} s: calculated from one H100, see docs/gpu.md; sampling {sampling:,.0f} s: "
        f"assumes {_ENGINE_TOKENS:,} tokens/s of each engine",
    ]


def seconds_of_update(config: Config, architecture: Architecture) -> float:
    """Return the seconds of a step after sampling, on H100s, if every sample has the longest length.

    Time per token scales with the layers, time per sample and gathers with the experts' weights as well.
    """
    layers = architecture.layers / _MEASURED.layers
    weights = layers * architecture.experts / _MEASURED.experts
    samples = config.samples_per_rollout * config.args.max_epochs / config.actor_ranks
    gathers = _GATHERS if config.args.actor_shard == "zero3" and config.actor_ranks > 1 else 0
    fixed = weights * (_PER_SAMPLE + gathers) / config.args.micro_train_batch_size
    return samples * (fixed + layers * _PER_TOKEN * config.max_model_len)
