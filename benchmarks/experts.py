"""The experts of a layer, forward and backward: transformers' loop, and grouped products with bf16 or packed weights.

`adapted` is a packed layer whose experts have an adapter, which is trained. With `--sequences`, two vLLM engines
decode that many sequences through one layer: with an adapter of the attention alone, and with one of the experts, too.

`stock` and `ours` are what a pass gives to the device: kernels on a GPU, operations of PyTorch on a CPU. A wait is one
whose result Python needs to continue. On a CPU, a grouped product counts as one operation, though it loops over
the experts inside; it is one kernel on GPUs of compute capability 9.0 and 10.0.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from benchmarks.harness import Result, time_in_turn
from benchmarks.machine import Copy
from benchmarks.parts.random_values import expert_values
from grpo.model.experts import Experts
from grpo.model.routing import WEIGHS_CHOSEN, format_router_weights

ON_ANY_DEVICE = True
CHOSEN = 4
RANK = 16  # of an expert: the default of EXPERT_RANK in the recipe
# Of two implementations of a sum in bf16.
TOLERANCE = 0.02
GROUPED = "aten::_grouped_mm"
WAITS = ("aten::_local_scalar_dense", "aten::nonzero")
SIZES = {"experts": 16, "hidden": 2880, "tokens": 128, "sequences": 0, "repeat": 3}


def run(options: argparse.Namespace, copy: Copy) -> Result:
    layers = _layers(options, copy.device)
    passes = {name: _make_pass(layer, options, copy.device) for name, layer in layers.items()}
    expected = passes["stock"]()
    for name, run_pass in passes.items():
        for value, wanted in zip(run_pass(), expected, strict=True):
            if (value - wanted).norm() > TOLERANCE * wanted.norm():
                raise RuntimeError(f"{name} and stock do not agree: run pytest tests/grpo/model/test_experts.py")
    counts = {name: count_launches_and_waits(run_pass, copy.device) for name, run_pass in passes.items()}
    timings = time_in_turn(passes, options.repeat, copy.device)
    sampling = {}
    if options.sequences:
        from benchmarks.parts.sampled_experts import measure_sampling  # imports vLLM

        seconds = measure_sampling(options, copy.device, RANK)
        sampling = {f"seconds_of_a_pass_{name}": value for name, value in seconds.items()}
        sampling["pass_experts_over_attention"] = seconds["experts"] / seconds["attention"]
    sizes = {name: sum(p.numel() * p.itemsize for p in layer.parameters()) / 1e9 for name, layer in layers.items()}
    return Result(
        what=f"kernels or operations of a forward and backward pass of {options.tokens} tokens through "
        f"{options.experts} experts of {options.hidden} x {options.hidden} on {copy.device}",
        unit="launches",
        stock=counts["stock"][0],
        ours=counts["packed"][0],
        details={
            **{f"waits_{name}": waits for name, (_, waits) in counts.items()},
            **{f"seconds_{name}": timing.seconds for name, timing in timings.items()},
            **{f"weights_{name}_gb": size for name, size in sizes.items()},
            "packed_over_bf16_seconds": timings["packed"].seconds / timings["bf16"].seconds,
            "launches_adapted": counts["adapted"][0],
            "adapted_over_packed_seconds": timings["adapted"].seconds / timings["packed"].seconds,
            **sampling,
        },
    )


def _layers(options: argparse.Namespace, device: torch.device) -> dict[str, torch.nn.Module]:
    """Return transformers' experts, and ours in bf16, packed, and with an adapter, all with the same weights."""
    from peft import LoraConfig  # the GPU check imports this module without it

    from grpo.model.expert_lora import ExpertLora

    config = GptOssConfig(
        num_local_experts=options.experts,
        num_experts_per_tok=CHOSEN,
        hidden_size=options.hidden,
        intermediate_size=options.hidden,
    )
    with torch.device("meta"):
        layers = {"stock": GptOssExperts(config), "bf16": Experts(config, False)}
        layers |= {name: Experts(config, True) for name in ("packed", "adapted")}
    for name, value in expert_values(options.experts, options.hidden, torch.Generator(device)):
        for layer in layers.values():
            if hasattr(layer, name):
                layer.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
    adapted: Any = layers["adapted"]
    for name, shape in adapted.shapes.items():
        lora = ExpertLora(shape, RANK, adapted.down_proj_bias)
        lora.update_layer("default", CHOSEN * RANK, CHOSEN * RANK, LoraConfig())  # an adapter without effect yet
        adapted.adapters[name] = lora
    return {name: layer.train() for name, layer in layers.items()}


def _make_pass(layer: torch.nn.Module, options: argparse.Namespace, device: torch.device) -> Callable[[], Any]:
    """Return a function that makes one pass, and returns the result and the gradient of the states.

    It also computes the gradients of an adapter.
    """
    torch.manual_seed(1)
    batch = (2, options.tokens) if WEIGHS_CHOSEN else (2, 1, options.tokens)
    states, upstream = torch.randn(*batch, options.hidden, device=device).bfloat16().unbind()
    logits = torch.randn(options.tokens, options.experts, device=device)
    top, choices = logits.topk(min(CHOSEN, options.experts))
    weights = format_router_weights(top.softmax(-1), choices, options.experts).bfloat16()

    def run_pass() -> tuple[torch.Tensor, torch.Tensor]:
        given = states.clone().requires_grad_()
        result = layer(given, router_indices=choices, routing_weights=weights)
        trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        return result.detach(), torch.autograd.grad(result, [given, *trained], upstream)[0]

    return run_pass


def count_launches_and_waits(run_pass: Callable[[], Any], device: torch.device) -> tuple[int, int]:
    """Return how many kernels or operations a pass has, and how many waits."""
    activities = (
        torch.profiler.supported_activities() if device.type != "cpu" else {torch.profiler.ProfilerActivity.CPU}
    )
    with torch.profiler.profile(activities=activities) as profile:
        run_pass()
    if device.type != "cpu":  # the profiler itself waits once, at its end
        names = [event.name for event in profile.events()]
        return sum("LaunchKernel" in name for name in names), names.count("cudaStreamSynchronize")
    operations = [event for event in profile.events() if event.name.startswith("aten::") and not _is_inside(event)]
    leaves = [event for event in operations if not event.cpu_children or event.name == GROUPED]
    return len(leaves), sum(event.name in WAITS for event in leaves)


def _is_inside(event: Any) -> bool:
    """Return whether an operation is part of a grouped product."""
    parent = event.cpu_parent
    return parent is not None and (parent.name == GROUPED or _is_inside(parent))
