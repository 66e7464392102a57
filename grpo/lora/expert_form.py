"""The adapter of the experts: in a model as each expert's matrices, in files as PEFT holds it. Works without torch.

A model has A ``[E, R, in]`` and B ``[E, out, R]``. PEFT's files have A ``[E * R, in]`` and B ``[out, R * E]``, in whose
columns the expert changes first. PEFT wraps the experts' module once for each projection, which gives the names:
``experts.base_layer`` is gate_up_proj, ``experts`` itself down_proj. vLLM reads both.

With transformers 4, PEFT 0.19.1 and later take gpt-oss's weights ``[E, in, out]`` for ``[E, out, in]``: A and B trade
places under the same names. The form here is PEFT's with transformers 5, where the experts' module has
``is_transposed``.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo.model.architecture import EXPERT_PROJECTIONS

if TYPE_CHECKING:
    import torch

MODULES = {"gate_up_proj": "experts.base_layer", "down_proj": "experts"}  # of PEFT's names
PARAMETERS = tuple(f"experts.{name}" for name in EXPERT_PROJECTIONS)


def to_file_name(name: str) -> str:
    """Return the name of an adapter's tensor in PEFT's file for that of its parameter in a PeftModel."""
    for projection, module in MODULES.items():
        name = name.replace(f".experts.adapters.{projection}.", f".{module}.")
    return name.replace(".default.", ".")


def name_modules(layer: int) -> dict[str, str]:
    """Return PEFT's names of the modules that hold the adapters of a layer's experts, by their projections."""
    return {name: f"model.layers.{layer}.mlp.{module}" for name, module in MODULES.items()}


def name_parameter(module: str) -> str:
    """Return the name of the base's parameter that a module of PEFT's adapts."""
    for name, inner in MODULES.items():
        if module.endswith(f".mlp.{inner}"):
            return f"{module.removesuffix(inner)}experts.{name}"
    return f"{module}.weight"


def to_file_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape in PEFT's file of a tensor that a model holds. Only those of experts change."""
    if len(shape) < 3:
        return tuple(shape)
    experts, outputs, inputs = shape
    return (experts * outputs, inputs) if _is_a(name) else (outputs, inputs * experts)


def to_file(name: str, tensor: "torch.Tensor") -> "torch.Tensor":
    """Return a model's tensor as PEFT's file holds it, contiguous; the counterpart of :func:`from_file`."""
    if tensor.dim() < 3:
        return tensor
    return tensor.flatten(0, 1) if _is_a(name) else tensor.permute(1, 2, 0).flatten(1).contiguous()


def from_file(name: str, tensor: "torch.Tensor", shape: Sequence[int]) -> "torch.Tensor":
    """Return a file's tensor in the shape that a model holds."""
    if len(shape) < 3:
        return tensor
    experts = shape[0]
    return tensor.unflatten(0, (experts, -1)) if _is_a(name) else tensor.unflatten(1, (-1, experts)).permute(2, 0, 1)


def to_file_config(config: dict[str, Any], shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Return where adapter_config.json must differ from a model's config, which names our modules.

    vLLM scales all parts of an adapter by lora_alpha / r. So that PEFT does so too, experts have an alpha of
    their own beside their rank.

    Args:
        config: of PEFT.
        shapes: of the model's tensors, by PEFT's names.
    """
    rank = next((shape[1] for name, shape in shapes.items() if len(shape) == 3 and _is_a(name)), None)
    if rank is None:
        return {}
    alpha = config["lora_alpha"] * rank / config["r"]
    ours = {f"experts.adapters.{name}" for name in EXPERT_PROJECTIONS}
    return {
        "target_modules": sorted(set(config["target_modules"]) - ours),
        "target_parameters": [f"mlp.{parameter}" for parameter in PARAMETERS],
        "rank_pattern": dict.fromkeys(PARAMETERS, rank),
        "alpha_pattern": dict.fromkeys(PARAMETERS, int(alpha) if alpha == int(alpha) else alpha),
    }


def _is_a(name: str) -> bool:
    return ".lora_A." in name
