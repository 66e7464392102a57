"""Reads the files of a LoRA adapter in PEFT's format and checks them against a base model. Works without torch."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.checkpoint import digests
from grpo.lora import expert_form
from grpo.model.architecture import EXPERT_PROJECTIONS, EXPERTS_TARGET, TARGETS, Architecture
from grpo.model.model_files import (
    CheckpointError,
    FileFault,
    HeaderError,
    Tensor,
    read_header,
    read_json,
)

if TYPE_CHECKING:
    import torch

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"
# Run in the adapter's folder.
_CONVERT = (
    'python -c "import torch; from safetensors.torch import save_file; '
    f"save_file(torch.load('{_PICKLE}', weights_only=True), '{WEIGHTS}')\""
)
HALVES = ("A", "B")
BASE_KEY = "base_sha256"  # in the weights file's metadata
_LARGEST = 10**6  # r and lora_alpha
_AGAIN = "copy the adapter again, or use the one of another step"
# PEFT leaves out "default", the adapter's name in a model; a state dict that is saved as it is has it.
_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<half>[AB])(\.default)?\.weight")
_MODULE = re.compile(
    r"model\.layers\.(?P<layer>\d{1,3})\.(self_attn\.(?P<projection>\w+)|mlp\.(?P<experts>experts)(\.base_layer)?)"
)


@dataclass(frozen=True)
class Adapter:
    """An adapter folder.

    Attributes:
        rank, alpha: r and lora_alpha of its config.
        tensors: every tensor of its weights file, by PEFT's name.
        stored: the name in the file by PEFT's name.
        faults: faults of the weights that do not depend on the base model.
        base: :func:`fingerprint` of the model that it was trained on; None if the file does not contain it.
    """

    folder: Path
    config: dict[str, Any]
    rank: int
    alpha: float
    tensors: dict[str, Tensor]
    stored: dict[str, str] = field(default_factory=dict)
    faults: tuple[FileFault, ...] = ()
    base: str | None = None

    @property
    def scale(self) -> float:
        """Return the factor of B A: alpha / r, or alpha / sqrt(r) with rank-stabilised LoRA."""
        return self._scale(self.alpha, self.rank)

    def find_expert_scale(self, parameter: str) -> float:
        """Return the factor of B A at one of the parameters of experts, see :mod:`grpo.lora.expert_form`."""
        rank, alpha = (
            next((value for name, value in (self.config.get(key) or {}).items() if name.endswith(parameter)), general)
            for key, general in (("rank_pattern", self.rank), ("alpha_pattern", self.alpha))
        )
        return self._scale(alpha, rank)

    def _scale(self, alpha: float, rank: float) -> float:
        return alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank)

    def find_expert_rank(self, base: Architecture) -> int:
        """Return the rank of the adapters of the base's experts; 0 if they have none."""
        module = expert_form.name_modules(0)[EXPERT_PROJECTIONS[0]]
        tensor = self.tensors.get(tensor_name(module, "A"))
        return tensor.shape[0] // base.experts if tensor and len(tensor.shape) == 2 else 0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor, by PEFT's name."""
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}

    @property
    def targets(self) -> list[str]:
        """Return the targets, by the last parts of their names; a pattern comes as a single item."""
        targets, of_experts = self.config.get("target_modules"), [EXPERTS_TARGET] * bool(self._target_parameters)
        if isinstance(targets, str):
            return [targets, *of_experts]
        names = sorted({str(name).rpartition(".")[2] for name in targets}) if isinstance(targets, list) else []
        return names + of_experts

    @property
    def _target_parameters(self) -> list[str]:
        return self.config.get("target_parameters") or []

    @property
    def projections(self) -> list[str]:
        """Return those of the TARGETS that have weights."""
        matches = (_MODULE.fullmatch(module) for module in pairs(self))
        found = {match["projection"] or match["experts"] for match in matches if match}
        return [name for name in TARGETS if name in found]


def read(folder: Path) -> Adapter:
    """Verify the digests of an adapter's files, and read adapter_config.json and the header of the weights.

    An adapter without SHA256SUMS is read unverified, see :func:`grpo.checkpoint.digests.describe_unverified`.

    Raises:
        CheckpointError: if a file differs from what was saved, or the config is missing or not a LoRA adapter's.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} does not exist", "name an adapter, such as RUN/final")
    for part, what in (("adapter", "a checkpoint of a run"), ("final", "a run's folder")):
        if (folder / part / CONFIG).is_file():
            raise CheckpointError(f"{folder} is {what}", f"name {folder / part}")
    if (folder / "checkpoints").is_dir():
        remedy = f"name one of its checkpoints, such as {folder}/checkpoints/step_N/adapter"
        raise CheckpointError(f"{folder} is a run's folder without a final adapter", remedy)
    if damage := digests.damage(folder):  # damaged files are not parsed
        what = "; ".join(f"{fault.file} {fault.what}" for fault in damage)
        raise CheckpointError(f"{folder}: {what}", damage[0].remedy)
    config = read_json(folder / CONFIG)
    if (folder / _PICKLE).exists() and not (folder / WEIGHTS).exists():
        what = f"{folder} has {_PICKLE}, a pickle, which could run code when it is read"
        raise CheckpointError(what, f"convert it there, if you trust it: {_CONVERT}")
    if config.get("peft_type") != "LORA":
        raise CheckpointError(f"{CONFIG} describes a {config.get('peft_type')} adapter", "use a LORA adapter")
    rank: Any = config.get("r")
    alpha: Any = config.get("lora_alpha")
    is_whole = type(rank) is int and 1 <= rank <= _LARGEST
    # NaN is not. verl's merger has written 0, which scales the adapter away.
    if not (is_whole and isinstance(alpha, int | float) and 0 < abs(alpha) <= _LARGEST):
        what = f"{CONFIG} has r {rank} and lora_alpha {alpha}, which are not valid"
        raise CheckpointError(what, "set them to the values of its training, or copy the adapter again")
    try:
        tensors, end, metadata = read_header(folder / WEIGHTS)
    except HeaderError as error:
        return Adapter(folder, config, rank, float(alpha), {}, faults=(FileFault(WEIGHTS, str(error), _AGAIN),))
    stored = {_peft_name(name): name for name in tensors}
    if len(stored) < len(tensors):
        twice = next(name for name in tensors if stored[_peft_name(name)] != name)
        raise CheckpointError(f"{folder}: {WEIGHTS} has {twice} under another name, too", "remove one of the two")
    by_name = {name: tensors[in_file] for name, in_file in stored.items()}
    adapter = Adapter(folder, config, rank, float(alpha), by_name, stored, base=metadata.get(BASE_KEY))
    faults = _check_pairs(adapter)
    size = (folder / WEIGHTS).stat().st_size
    if size != end:
        faults.insert(
            0, FileFault(WEIGHTS, f"has {size:,} bytes, but its header says {end:,}: the copy is incomplete", _AGAIN)
        )
    return replace(adapter, faults=tuple(faults))


def pairs(adapter: Adapter) -> dict[str, dict[str, Tensor]]:
    """Return the halves A `[r, in]` and B `[out, r]` by the name of the base model's module. One may be missing."""
    halves: dict[str, dict[str, Tensor]] = {}
    for name, tensor in sorted(adapter.tensors.items()):
        if match := _NAME.fullmatch(name):
            halves.setdefault(match["module"], {})[match["half"]] = tensor
    return halves


def tensor_name(module: str, half: str) -> str:
    """Return PEFT's name of one half of a module's pair."""
    return f"base_model.model.{module}.lora_{half}.weight"


def _peft_name(name: str) -> str:
    match = _NAME.fullmatch(name)
    return tensor_name(match["module"], match["half"]) if match else name


def _check_pairs(adapter: Adapter) -> list[FileFault]:
    """Check what needs no base model: halves, ranks, dtypes, and that all layers have the same modules."""
    by_module = pairs(adapter)
    foreign = [name for name in adapter.tensors if not _NAME.fullmatch(name)]
    single = [tensor_name(m, h) for m, halves in by_module.items() for h in HALVES if h not in halves]
    both = {module: halves for module, halves in by_module.items() if len(halves) == len(HALVES)}
    ranks = [tensor_name(m, h) for m, halves in both.items() for h in HALVES if not _has_rank(adapter, m, halves, h)]
    types = [name for name, tensor in adapter.tensors.items() if tensor.dtype not in ("BF16", "F16", "F32")]
    layers = (int(match["layer"]) for match in map(_MODULE.fullmatch, by_module) if match)
    wanted = list_wanted_modules(adapter, max(layers, default=-1) + 1)
    absent = [tensor_name(module, "A") for module in wanted if module not in by_module]
    faults = [
        make_fault(foreign, "tensors that do not belong to a LoRA pair"),
        make_fault(single, "pairs with only one half"),
        make_fault(ranks, f"tensors whose rank differs from the {adapter.rank} in {CONFIG}"),
        make_fault(types, "tensors that are not floating point"),
        make_fault(absent, "missing projections that other layers have"),
    ]
    if not adapter.tensors:
        faults = [FileFault(WEIGHTS, "has no tensors", _AGAIN)]
    return [fault for fault in faults if fault]


def make_fault(names: list[str], what: str) -> FileFault | None:
    return FileFault(WEIGHTS, f"has {len(names)} {what}: {names[0]}", _AGAIN, tuple(names)) if names else None


def _has_rank(adapter: Adapter, module: str, halves: dict[str, Tensor], half: str) -> bool:
    a, b = halves["A"].shape, halves["B"].shape
    if len(a) != 2 or len(b) != 2 or a[0] != b[1]:
        return False
    # Of experts, the files have their number times their rank.
    is_other = ".experts" in module or bool(adapter.config.get("rank_pattern"))
    return is_other or (a[0] if half == "A" else b[1]) == adapter.rank


def list_wanted_modules(adapter: Adapter, layers: int) -> list[str]:
    """Return the modules that an adapter of a model with ``layers`` layers must contain."""
    if adapter.config.get("layers_to_transform") or adapter.config.get("exclude_modules"):
        return []
    wanted = {*adapter.projections, *adapter.targets}
    return list_modules(layers, [name for name in TARGETS if name in wanted])


def list_modules(layers: int, targets: Sequence[str]) -> list[str]:
    """Return PEFT's names of the modules with an adapter in a gpt-oss model, for some of the TARGETS."""
    names: list[str] = []
    for layer in range(layers):
        names += [f"model.layers.{layer}.self_attn.{name}" for name in targets if name != EXPERTS_TARGET]
        names += expert_form.name_modules(layer).values() if EXPERTS_TARGET in targets else ()
    return names


def load(adapter: Adapter) -> "dict[str, torch.Tensor]":
    """Return the values of all tensors by PEFT's name, as stored: bf16, fp16 or fp32, on the CPU. Needs torch."""
    from safetensors import safe_open

    with safe_open(adapter.folder / WEIGHTS, framework="pt") as file:
        return {name: file.get_tensor(in_file) for name, in_file in sorted(adapter.stored.items())}


def non_finite(adapter: Adapter) -> list[str]:
    """Return the names of tensors that contain NaN or infinity, or do so in bf16. Reads the whole file, with torch."""
    return [name for name, values in load(adapter).items() if not values.bfloat16().isfinite().all()]
