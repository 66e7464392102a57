"""What a run is, in lines for people: its plan, its GPUs, its reward, its cost."""

from grpo.launch import cost, gpu_memory, judge
from grpo.launch.checks import reward, software
from grpo.launch.config import Config
from grpo.launch.judge import RunJudge
from grpo.launch.plan import Plan
from grpo.launch.plan import describe as describe_plan
from grpo.stack import machine
from grpo.stack.checkout import is_cpu_stack
from grpo.stack.machine import Gpu

# Where torch._grouped_mm is one kernel: Hopper, and Blackwell of data centres.
FUSED = ("9.0", "10.0")


def describe(plan: Plan, config: Config, run_judge: RunJudge) -> list[str]:
    """Return what the plan says of a run."""
    return [
        software.describe(),
        *describe_plan(plan, config),
        *describe_placement(config),
        *gpu_memory.describe(config),
        *reward.describe(config),
        *judge.describe(run_judge, config),
        *cost.describe(plan, config, run_judge),
    ]


def describe_placement(config: Config) -> list[str]:
    """Name the GPUs of each engine and of the actor, in lines for people; [] without enough GPUs here.

    Ray gives GPUs in the order of CUDA_VISIBLE_DEVICES. The engines ask first, then the actor. With
    --colocate_all_models both get the same ones.
    """
    gpus = machine.known_gpus()
    if len(gpus) < config.gpus:
        return []
    width, engines = config.args.vllm_tensor_parallel_size, range(config.args.vllm_num_engines)
    shares = {f"engine {number}": gpus[number * width : (number + 1) * width] for number in engines}
    shares["actor"] = gpus[: config.gpus] if config.args.colocate_all_models else gpus[config.engine_gpus : config.gpus]
    lines = [f"{name}: {_names(share)}" for name, share in shares.items()]
    return [f"{'placement' if number == 0 else '':<12}{line}" for number, line in enumerate(lines)]


def _names(gpus: list[Gpu]) -> str:
    numbers = ", ".join(str(gpu.index) for gpu in gpus)
    nodes = sorted({node for gpu in gpus if (node := machine.find_node(gpu)) is not None})
    where = f" (NUMA node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))})" if nodes else ""
    return f"GPU{'s' * (len(gpus) > 1)} {numbers}{where}"


def warn_of_gpus() -> list[str]:
    """Return a line for each kind of GPU of this machine that has no fused grouped product."""
    gpus = [] if is_cpu_stack() else machine.gpus()
    kinds = sorted({(gpu.name, gpu.capability) for gpu in gpus if gpu.capability not in FUSED})
    return [
        f"WARNING: {name} (compute capability {capability}) has no fused grouped product, as {' and '.join(FUSED)} do: "
        "PyTorch multiplies the actor's experts one by one and waits for the GPU each time. Steps are slower, with the "
        "same results"
        for name, capability in kinds
    ]
