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
from grpo.model.architecture import ATTENTION_PROJECTIONS, EXPERTS_TARGET, TARGETS, Architecture
from grpo.model.model_files import CheckpointError, FileFault, Model, Tensor

_BASE_BYTES = 4096  # bytes of each tensor that identify a base model
_PLAINLY = "serve the adapter with PEFT, or train one without this setting"
_OF_ANOTHER = "use the model that the adapter was trained on (see base_model_name_or_path)"
# PEFT's options that change more than scale * B A, with the values that switch them off. Most others add tensors.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "use_qalora": (False, None),
    "use_bdlora": (False, None),
    "bias": ("none", None),
    "modules_to_save": (None, []),
    "layer_replication": (None, []),
    "alora_invocation_tokens": (None, []),
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
    base, faults = Architecture.from_config(model.config), list[FileFault]()
    if None not in (adapter.base, known := fingerprint(model)) and adapter.base != known:
        what = f"belongs to a base model other than {model.folder}: the weights differ, even if the shapes agree"
        faults.append(FileFault(WEIGHTS, what, _OF_ANOTHER))
    for key, plain in _PLAIN.items():
        if adapter.config.get(key) not in plain:
            what = f"has {key} {adapter.config[key]}, but only scale * B A added to a frozen weight is supported"
            faults.append(FileFault(CONFIG, what, _PLAINLY))
    return [*faults, *_find_pattern_faults(adapter), *_find_tensor_faults(adapter, base)]


def _find_tensor_faults(adapter: Adapter, base: Architecture) -> Iterator[FileFault]:
    """Yield what differs from the tensors that an adapter of this base has."""
    by_module, shapes = adapter_files.pairs(adapter), _find_shapes(adapter, base)
    if any(_is_exchanged(by_module[module], shapes[module]) for module in by_module.keys() & shapes):
        what = "is in the form of PEFT with transformers 4, which exchanges A and B of experts"
        yield FileFault(WEIGHTS, what, "train it with transformers 5, or exchange them expert by expert")
        return
    wanted = {*adapter.projections, *_name_targets(adapter)}
    modules = adapter_files.list_modules(base.layers, [name for name in TARGETS if name in wanted])
    own = {adapter_files.tensor_name(module, half): shapes[module][half] for module in modules for half in HALVES}
    if differs := adapter_files.difference(adapter.shapes, own):
        what = f"has tensors other than those of its targets in the base with rank {adapter.rank}: {differs}"
        yield FileFault(WEIGHTS, what, _OF_ANOTHER)


def _name_targets(adapter: Adapter) -> list[str]:
    """Return what the config says that an adapter covers, by the last parts of the names; a pattern says nothing."""
    targets = adapter.config.get("target_modules")
    names = [str(name).rpartition(".")[2] for name in targets] if isinstance(targets, list) else []
    return names + [EXPERTS_TARGET] * bool(adapter.config.get("target_parameters"))


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
    known = {f"{prefix}{parameter}" for prefix in ("", "mlp.") for parameter in expert_form.PARAMETERS}
    for key in ("rank_pattern", "alpha_pattern", "target_parameters"):
        if not known.issuperset(value := adapter.config.get(key) or ()):
            what = f"has {key} {value}, but only experts may differ from the attention"
            yield FileFault(CONFIG, what, _PLAINLY)
            return
    for parameter in expert_form.PARAMETERS if EXPERTS_TARGET in adapter.projections else ():
        if not math.isclose(scale := adapter.find_expert_scale(parameter), adapter.scale):
            what = f"scales {parameter} by {scale:g} and the attention by {adapter.scale:g}, which vLLM would not"
            remedy = (
                f"in a copy, multiply their lora_B by {scale:g} / {adapter.scale:g}, and set their alpha_pattern so"
            )
            yield FileFault(CONFIG, what, f"{remedy} that both scales are equal")
