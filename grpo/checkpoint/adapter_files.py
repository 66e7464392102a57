"""LoRA adapters in PEFT's format: their files, and whether one belongs to a base model and can be used with it.

We use an adapter as scale * B A beside frozen weights. Works without torch, except to load and save values.
"""

import functools
import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.checkpoint import digests
from grpo.lora import expert_form
from grpo.model import model_files
from grpo.model.architecture import ATTENTION_PROJECTIONS, EXPERT_PROJECTIONS, EXPERTS_TARGET, TARGETS, Architecture
from grpo.model.model_files import CheckpointError, FileFault, HeaderError, Model, Tensor, read_header, read_json

if TYPE_CHECKING:
    import torch

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
HALVES = ("A", "B")
BASE_KEY = "base_sha256"  # in the weights file's metadata
_LARGEST = 10**6  # r and lora_alpha
_AGAIN = "copy the adapter again, or use the one of another step"
# PEFT leaves out "default", the adapter's name in a model; a state dict that is saved as it is has it.
_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<half>[AB])(\.default)?\.weight")
_MODULE = re.compile(r"model\.layers\.\d+\.(self_attn\.(?P<projection>\w+)|mlp\.(?P<experts>experts)(\.base_layer)?)")
_BASE_BYTES = 4096  # bytes of each tensor that identify a base model
_PLAINLY = "serve the adapter with PEFT, or train one without this setting"
_OF_ANOTHER = "use the model that the adapter was trained on (see base_model_name_or_path)"
# Fields of PEFT's config that we read, and those that do not change what an adapter computes. Others must be off.
_KNOWN = {
    *("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"),
    *("target_modules", "target_parameters", "exclude_modules"),  # compared with the tensors, or named by them
    *("task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode"),
    *("lora_dropout", "eva_config", "megatron_core", "qalora_group_size", "ensure_weight_tying"),
}
# "pissa", "olora", "corda", and others change the base model before training.
_OFF = {"bias": ("none",), "init_lora_weights": (True, "gaussian", "eva", "orthogonal")}


@dataclass(frozen=True)
class Adapter:
    """An adapter folder.

    Attributes:
        rank, alpha: r and lora_alpha of its config.
        tensors: every tensor of its weights file, by PEFT's name.
        stored: the name in the file by PEFT's name.
        base: :func:`fingerprint` of the model that it was trained on; None if the file
            does not contain it.
    """

    folder: Path
    config: dict[str, Any]
    rank: int
    alpha: float
    tensors: dict[str, Tensor]
    stored: dict[str, str]
    base: str | None

    @property
    def scale(self) -> float:
        """Return the factor of B A: alpha / r, or alpha / sqrt(r) with rank-stabilized LoRA."""
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
    def projections(self) -> list[str]:
        """Return those of the TARGETS that have weights."""
        matches = filter(None, map(_MODULE.fullmatch, pairs(self)))
        found = {match["projection"] or match["experts"] for match in matches}
        return [name for name in TARGETS if name in found]


def read(folder: Path) -> Adapter:
    """Verify the digests of an adapter's files, and read adapter_config.json and the header of the weights.

    An adapter without SHA256SUMS is read unverified, see :func:`grpo.checkpoint.digests.describe_unverified`.
    Raises CheckpointError if a file differs from what was saved, is incomplete, or is not a LoRA adapter's.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} does not exist", "name an adapter, such as RUN/final")
    for part in ("adapter", "final", "checkpoints"):  # of a checkpoint, of a run, of one without a final adapter
        if (folder / part).is_dir():
            remedy = f"name {folder / part}" + "/step_N/adapter" * (part == "checkpoints")
            raise CheckpointError(f"{folder} is no adapter, but has one", remedy)
    if damage := digests.damage(folder):  # damaged files are not parsed
        raise CheckpointError(f"{folder}: {digests.describe(damage)}", _AGAIN)
    config = read_json(folder / CONFIG)
    if config.get("peft_type") != "LORA":
        raise CheckpointError(f"{CONFIG} describes a {config.get('peft_type')} adapter", "use a LORA adapter")
    rank: Any = config.get("r")
    alpha: Any = config.get("lora_alpha")
    is_whole = type(rank) is int and 1 <= rank <= _LARGEST
    # NaN is not. verl's merger has written 0, which scales the adapter away.
    if not (is_whole and isinstance(alpha, int | float) and 0 < abs(alpha) <= _LARGEST):
        what = f"{CONFIG} has r {rank} and lora_alpha {alpha}, which are not valid"
        raise CheckpointError(what, "set them to the values of its training, or copy the adapter again")
    tensors, base = _read_weights(folder / WEIGHTS)
    stored = {_peft_name(name): name for name in tensors}
    by_name = {name: tensors[in_file] for name, in_file in stored.items()}
    return Adapter(folder, config, rank, float(alpha), by_name, stored, base)


def _read_weights(file: Path) -> tuple[dict[str, Tensor], str | None]:
    """Return the tensors of a weights file by their names there, and the base's fingerprint."""
    try:
        tensors, end, metadata = read_header(file)
    except HeaderError as error:
        raise CheckpointError(f"{file} {error}", _AGAIN) from error
    if (size := file.stat().st_size) != end:
        what = f"{file} has {size:,} bytes, but its header says {end:,}: the copy is incomplete"
        raise CheckpointError(what, _AGAIN)
    if not tensors:
        raise CheckpointError(f"{file} has no tensors", _AGAIN)
    return tensors, metadata.get(BASE_KEY)


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


def save(folder: Path, tensors: "dict[str, torch.Tensor]", base: str | None) -> None:
    """Write the weights of an adapter of a `base` (its fingerprint). Equal tensors give equal bytes. Needs torch."""
    from safetensors.torch import save_file

    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"} | ({BASE_KEY: base} if base else {}))
    with (folder / WEIGHTS).open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))  # safetensors writes them in any order
        file.seek(8)
        file.write(json.dumps(header, separators=(",", ":")).encode().ljust(size))


def difference(saved: dict[str, tuple[int, ...]], wanted: dict[str, tuple[int, ...]]) -> str | None:
    """Name the first tensor that differs between two adapters, with both shapes; None if they agree."""
    for name in sorted(saved | wanted):
        if saved.get(name) != wanted.get(name):
            return f"{name} is {saved.get(name, 'missing')} and not {wanted.get(name, 'missing')}"
    return None


def non_finite(adapter: Adapter) -> list[str]:
    """Return the names of tensors that contain NaN or infinity, or do so in bf16. Reads the whole file, with torch."""
    return [name for name, values in load(adapter).items() if not values.bfloat16().isfinite().all()]


def fingerprint(model: Model) -> str | None:
    """Return a SHA-256 that tells a base model from others of its shape; None if tensors or files for it are missing.

    It covers the beginnings of the last norm and of every layer's q_proj. An MXFP4 checkpoint and its bf16 copies share
    them.
    """
    names = ["model.norm.weight"]
    layers = Architecture.from_config(model.config).layers
    names += [f"{module}.weight" for module in list_modules(layers, ["q_proj"])]
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
    for key, value in adapter.config.items():
        if key not in _KNOWN and value is not False and value not in (None, [], {}, *_OFF.get(key, ())):
            what = f"has {key} {value}, but only scale * B A added to a frozen weight is supported"
            faults.append(FileFault(CONFIG, what, _PLAINLY))
    return [*faults, *_find_pattern_faults(adapter), *_find_tensor_faults(adapter, base)]


def _find_tensor_faults(adapter: Adapter, base: Architecture) -> Iterator[FileFault]:
    """Yield what differs from the tensors that an adapter of this base has."""
    by_module, shapes = pairs(adapter), _find_shapes(adapter, base)
    if any(_is_exchanged(by_module[module], shapes[module]) for module in by_module.keys() & shapes):
        what = "is in the form of PEFT with transformers 4, which exchanges A and B of experts"
        yield FileFault(WEIGHTS, what, "train it with transformers 5, or exchange them expert by expert")
        return
    wanted = {*adapter.projections, *_name_targets(adapter)}
    modules = list_modules(base.layers, [name for name in TARGETS if name in wanted])
    own = {tensor_name(module, half): shapes[module][half] for module in modules for half in HALVES}
    if differs := difference(adapter.shapes, own):
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
    for module in list_modules(base.layers, ATTENTION_PROJECTIONS):
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
