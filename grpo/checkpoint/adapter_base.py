"""Whether an adapter belongs to a base model, and can be used as we use adapters: scale * B A beside frozen weights."""

import functools
import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo.checkpoint import adapter_files
from grpo.checkpoint.adapter_files import CONFIG, HALVES, WEIGHTS, Adapter
from grpo.lora import expert_form
from grpo.model import model_files
from grpo.model.architecture import ATTENTION_PROJECTIONS, EXPERTS_TARGET, Architecture
from grpo.model.model_files import CheckpointError, FileFault, Model, Tensor

_BASE_BYTES = 4096  # bytes of each tensor that identify a base model
# PEFT's LoRA options that add more than scale * B A to a frozen weight, with the values that switch them off.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "use_qalora": (False, None),
    "use_bdlora": (False, None),
    "kasa_config": (None,),
    "velora_config": (None,),
    "monteclora_config": (None,),
    "bias": ("none", None),
    "lora_bias": (False, None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "layers_to_transform": (None, []),
    "exclude_modules": (None, []),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
    "alora_invocation_tokens": (None, []),
    "arrow_config": (None,),
    # Others (pissa, olora, corda, loftq) change the base model before training.
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}


def fingerprint(model: Model) -> str | None:
    """Return a SHA-256 that tells a base model from others of its shape; None if tensors or files for it are missing.

    It covers the beginnings of the last norm and of every layer's q_proj. An MXFP4 checkpoint and its bf16 copies share
    them.
    """
    names = ["model.norm.weight"]
    layers = Architecture.from_config(model.config).layers
    names += [f"{module}.weight" for module in adapter_files.list_modules(layers, ["q_proj"])]
    digest = hashlib.sha256()
    for name in names:
        tensor = model.tensors.get(name)
        if tensor is None or not tensor.file.is_file():
            return None
        with tensor.file.open("rb") as file:
            file.seek(tensor.start)
            digest.update(file.read(min(_BASE_BYTES, tensor.stop - tensor.start)))
    return digest.hexdigest()


@functools.lru_cache(maxsize=1)
def compute_fingerprint(folder: str) -> str | None:
    """Return the fingerprint of the model in a folder; None if it cannot be read (any more)."""
    try:
        return fingerprint(model_files.read(Path(folder)))
    except (CheckpointError, OSError, KeyError):
        return None


def check_against(adapter: Adapter, model: Model) -> list[FileFault]:
    """Return the reasons why an adapter cannot be used with a base model; [] if it can."""
    base, faults = Architecture.from_config(model.config), list(adapter.faults)
    if None not in (adapter.base, known := fingerprint(model)) and adapter.base != known:
        named = adapter.config.get("base_model_name_or_path")
        what = f"belongs to a base model other than {model.folder}: the weights differ, even if the shapes agree"
        faults.append(FileFault(WEIGHTS, what, f"use the model that the adapter was trained on ({named})"))
    for key, plain in _PLAIN.items():
        if adapter.config.get(key) not in plain:
            what = f"has {key} {adapter.config[key]}, but only scale * B A added to a frozen weight is supported"
            faults.append(FileFault(CONFIG, what, "serve the adapter with PEFT, or train one without this setting"))
    faults += _find_pattern_faults(adapter)
    by_module, shapes = adapter_files.pairs(adapter), _find_shapes(adapter, base)
    foreign = [adapter_files.tensor_name(m, h) for m, halves in by_module.items() if m not in shapes for h in halves]
    absent = [
        adapter_files.tensor_name(m, "A")
        for m in adapter_files.list_wanted_modules(adapter, base.layers)
        if m not in by_module
    ]
    wrong = [
        adapter_files.tensor_name(module, half)
        for module in by_module.keys() & shapes
        for half, tensor in by_module[module].items()
        if tensor.shape != shapes[module][half]
    ]
    explained = {name for fault in adapter.faults for name in fault.tensors}
    if any(_is_exchanged(by_module[module], shapes[module]) for module in by_module.keys() & shapes):
        what = "is in the form of PEFT with transformers 4, which exchanges A and B of experts"
        return [*faults, FileFault(WEIGHTS, what, "train it with transformers 5, or exchange them expert by expert")]
    for names, what in (
        (foreign, "tensors of modules that are neither attention projections nor experts of the base"),
        (wrong, "tensors whose shapes differ from the base's projections"),
        (absent, "missing projections that the adapter targets"),
    ):
        fault = adapter_files.make_fault(sorted(set(names) - explained), what)
        if fault:
            remedy = "use the model that the adapter was trained on (see base_model_name_or_path)"
            faults.append(FileFault(fault.file, fault.what, remedy, fault.tensors))
    return faults


def _find_shapes(adapter: Adapter, base: Architecture) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the shapes of A and B of every module of the base that an adapter can have, by PEFT's names."""
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    rank, rows = adapter.rank, adapter.find_expert_rank(base) * base.experts
    for module in adapter_files.list_modules(base.layers, ATTENTION_PROJECTIONS):
        outer, inner = base.projection(module.rpartition(".")[2])
        shapes[module] = {"A": (rank, inner), "B": (outer, rank)}
    for layer in range(base.layers):
        for projection, module in expert_form.name_modules(layer).items():
            inner, outer = base.expert_projection(projection)
            shapes[module] = {"A": (rows, inner), "B": (outer, rows)}
    return shapes


def _is_exchanged(halves: dict[str, Tensor], shapes: dict[str, tuple[int, ...]]) -> bool:
    """Return whether A and B have each other's shapes, transposed."""
    return (
        len(halves) == len(HALVES)
        and halves["A"].shape != shapes["A"]
        and (halves["A"].shape, halves["B"].shape) == (shapes["B"][::-1], shapes["A"][::-1])
    )


def _find_pattern_faults(adapter: Adapter) -> Iterator[FileFault]:
    """Yield what an adapter's config says of parameters other than experts', or of experts but not of all its parts."""
    for key, kind in (("rank_pattern", dict), ("alpha_pattern", dict), ("target_parameters", list)):
        value = adapter.config.get(key)
        if value and not (isinstance(value, kind) and _is_of_experts(value)):
            what = f"has {key} {value}, but only experts may differ from the attention"
            yield FileFault(CONFIG, what, "serve the adapter with PEFT, or train one without this setting")
            return
    scales = {parameter: adapter.find_expert_scale(parameter) for parameter in expert_form.PARAMETERS}
    for parameter, scale in scales.items() if EXPERTS_TARGET in adapter.projections else ():
        if not math.isclose(scale, adapter.scale):
            what = f"scales {parameter} by {scale:g} and the attention by {adapter.scale:g}, which vLLM would not"
            remedy = (
                f"in a copy, multiply their lora_B by {scale:g} / {adapter.scale:g}, and set their alpha_pattern so"
            )
            yield FileFault(CONFIG, what, f"{remedy} that both scales are equal")


def _is_of_experts(names: Any) -> bool:
    """Return whether all names are of the parameters of experts, and what they map to, if anything, is above 0."""
    known = {f"{prefix}{parameter}" for prefix in ("", "mlp.") for parameter in expert_form.PARAMETERS}
    numbers = names.values() if isinstance(names, dict) else ()
    return all(type(name) is str and name in known for name in names) and all(
        type(number) in (int, float) and number > 0 for number in numbers
    )
