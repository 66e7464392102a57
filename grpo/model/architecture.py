"""The tensors that a gpt-oss checkpoint must hold according to its config.json. Works without torch."""

import math
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from grpo.model.model_files import INDEX, SINGLE, CheckpointError, FileFault, Model

MODEL_TYPE = "gpt_oss"
CLASS = "GptOssForCausalLM"
PACKED = "packed"  # how the actor holds experts, as in the files; or "bf16"
NO_SHARD = "none"  # each rank holds all of the frozen base
ZERO3 = "zero3"  # each holds a part
OF_ENGINE = "engine"  # each maps the one that the engine on its GPU holds

ATTENTION_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
EXPERT_PROJECTIONS = ("gate_up_proj", "down_proj")
EXPERTS_TARGET = "experts"  # the projections of all experts
TARGETS = (*ATTENTION_PROJECTIONS, EXPERTS_TARGET)  # that an adapter can have, in the order of the model
_MOST_LAYERS = 1000  # gpt-oss-120b has 36
_GROUP = 32  # values that share a scale; as in grpo.model.mxfp4, which needs torch
_FLOATS = ("BF16", "F16", "F32")

# The rotary frequencies of gpt-oss, as transformers 5 names them. transformers 4 does not read these names: actor and
# engines would load a model with other values as if it had these, and agree with each other.
_ROPE: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 150_000, "factor": 32, "beta_fast": 32, "beta_slow": 1}
_ROPE |= {"truncate": False, "original_max_position_embeddings": 4096}

_REMEDY = "config.json and the weights are of different models or damaged: download both again"


@dataclass(frozen=True)
class Architecture:
    """The dimensions of a gpt-oss model; `mxfp4` tells how its experts are stored."""

    layers: int
    hidden: int
    heads: int
    key_value_heads: int
    head_dim: int
    experts: int
    experts_per_token: int
    intermediate: int
    vocabulary: int
    attention_bias: bool
    mxfp4: bool

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Architecture":
        """Read the contents of config.json.

        Raises:
            CheckpointError: if the architecture or storage format is unsupported, or a number is missing.
        """
        if config.get("model_type") != MODEL_TYPE:
            raise CheckpointError(f"config.json is of a {config.get('model_type')} model", f"choose a {MODEL_TYPE} one")
        # Of another class vLLM may run code of the model's folder (CVE-2026-27893).
        if config.get("architectures") not in (None, [CLASS]):
            raise CheckpointError(f"config.json is of a {config['architectures']}", f"choose a {CLASS}")
        quantization = config.get("quantization_config") or {}
        if not isinstance(quantization, dict):
            raise CheckpointError("quantization_config of config.json is no object", "download it again")
        method = quantization.get("quant_method")
        if method not in (None, "mxfp4"):
            raise CheckpointError(f"the weights are stored as {method}", "choose a checkpoint in MXFP4 or bf16")
        if config.get("tie_word_embeddings"):
            raise CheckpointError(
                "config.json ties lm_head to the embeddings, which gpt-oss does not", "download it again"
            )
        rope = config.get("rope_parameters") or {}
        if not isinstance(rope, dict) or any(rope.get(name, value) != value for name, value in _ROPE.items()):
            raise CheckpointError(
                "config.json has rope_parameters that are not gpt-oss's, which not all versions of transformers read",
                "write them as rope_theta and rope_scaling in place of rope_parameters",
            )
        numbers = {field: config.get(key) for field, key in _KEYS.items()}
        wrong = [_KEYS[field] for field, value in numbers.items() if type(value) is not int or value < 1]
        if wrong:
            raise CheckpointError(f"config.json has no positive count for {', '.join(wrong)}", "download it again")
        if (layers := config["num_hidden_layers"]) > _MOST_LAYERS:
            what = f"config.json has num_hidden_layers {layers}, and at most {_MOST_LAYERS} are supported"
            raise CheckpointError(what, "download it again")
        architecture = cls(**numbers, attention_bias=config.get("attention_bias", True), mxfp4=method == "mxfp4")  # type: ignore[arg-type]
        if architecture.mxfp4 and (architecture.hidden % _GROUP or architecture.intermediate % _GROUP):
            raise CheckpointError(
                f"config.json has sizes that are not multiples of {_GROUP}, which MXFP4 needs", "download it again"
            )
        return architecture

    def config(self) -> dict[str, Any]:
        """Return the part of config.json that :meth:`from_config` reads."""
        numbers = {key: getattr(self, field) for field, key in _KEYS.items()}
        method = {"quantization_config": {"quant_method": "mxfp4"}} if self.mxfp4 else {}
        return {"model_type": MODEL_TYPE, "attention_bias": self.attention_bias, **numbers, **method}

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every parameter by its name in transformers' `GptOssForCausalLM`."""
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocabulary, self.hidden)}
        for layer in range(self.layers):
            shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in self._layer()}
        return shapes | {"model.norm.weight": (self.hidden,), "lm_head.weight": (self.vocabulary, self.hidden)}

    def _layer(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield "input_layernorm.weight", (self.hidden,)
        yield "post_attention_layernorm.weight", (self.hidden,)
        yield "self_attn.sinks", (self.heads,)
        for name in ATTENTION_PROJECTIONS:
            shape = self.projection(name)
            yield f"self_attn.{name}.weight", shape
            if self.attention_bias:
                yield f"self_attn.{name}.bias", shape[:1]
        yield "mlp.router.weight", (self.experts, self.hidden)
        yield "mlp.router.bias", (self.experts,)
        for name in EXPERT_PROJECTIONS:
            inner, outer = self.expert_projection(name)
            yield f"mlp.experts.{name}", (self.experts, inner, outer)
            yield f"mlp.experts.{name}_bias", (self.experts, outer)

    def projection(self, name: str) -> tuple[int, int]:
        """Return the shape `[out, in]` of one of the ATTENTION_PROJECTIONS."""
        heads = self.heads if name in ("q_proj", "o_proj") else self.key_value_heads
        outer = heads * self.head_dim
        return (self.hidden, outer) if name == "o_proj" else (outer, self.hidden)

    def expert_projection(self, name: str) -> tuple[int, int]:
        """Return `(in, out)` of one of the EXPERT_PROJECTIONS of an expert, as its weight stands in the model."""
        gate_up = self.hidden, 2 * self.intermediate
        return gate_up if name == "gate_up_proj" else (self.intermediate, self.hidden)

    def find_expert_rank(self, args: Namespace) -> int:
        """Return the rank of each expert's adapter that a run's flags ask for; 0 if experts have none."""
        if EXPERTS_TARGET not in args.target_modules:
            return 0
        return args.expert_rank or max(1, args.lora_rank // self.experts_per_token)

    def count_lora_parameters(self, args: Namespace) -> int:
        """Return the number of the adapter's weights that a run's flags ask for."""
        attention = [self.projection(name) for name in ATTENTION_PROJECTIONS if name in args.target_modules]
        experts = [self.expert_projection(name) for name in EXPERT_PROJECTIONS]
        of_experts = self.experts * self.find_expert_rank(args) * sum(map(sum, experts))
        return self.layers * (args.lora_rank * sum(map(sum, attention)) + of_experts)

    def list_stored(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor in the files. MXFP4 experts are blocks and scales, transposed."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in self.parameters().items():
            if self.mxfp4 and is_expert(name):
                experts, inner, outer = shape
                shapes[f"{name}_blocks"] = (experts, outer, inner // _GROUP, _GROUP // 2)
                shapes[f"{name}_scales"] = (experts, outer, inner // _GROUP)
            else:
                shapes[name] = shape
        return shapes

    def actor_bytes(self, packed: bool) -> dict[str, int]:
        """Return the bytes of every parameter of the actor, with packed experts or all in bf16."""
        shapes = self.list_stored() if packed else self.parameters()
        return {name: math.prod(shape) * (1 if is_packed(name) else 2) for name, shape in shapes.items()}


_KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "key_value_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "experts": "num_local_experts",
    "experts_per_token": "num_experts_per_tok",
    "intermediate": "intermediate_size",
    "vocabulary": "vocab_size",
}


def is_packed(name: str) -> bool:
    """Return whether a tensor holds blocks or scales of MXFP4, in bytes."""
    return name.endswith(("_blocks", "_scales"))


def is_expert(name: str) -> bool:
    """Return whether MXFP4 checkpoints store this parameter packed."""
    return name.endswith((".experts.gate_up_proj", ".experts.down_proj"))


def check(model: Model) -> list[FileFault]:
    """Return all faults in a checkpoint's files; [] if it can be loaded.

    Raises:
        CheckpointError: if the architecture is not gpt-oss. Nothing more can be checked then.
    """
    wanted = Architecture.from_config(model.config).list_stored()
    explained = {name for fault in model.faults for name in fault.tensors}
    missing = tuple(name for name in wanted if name not in model.tensors and name not in explained)
    faults = list(model.faults)
    if missing and model.shards:
        what = f"lacks {len(missing)} of the {len(wanted)} tensors that config.json asks for, for example {missing[0]}"
        faults.append(FileFault(SINGLE if model.shards[0].name == SINGLE else INDEX, what, _REMEDY, missing))
    return faults + _contradictions(model, wanted)


def _contradictions(model: Model, wanted: dict[str, tuple[int, ...]]) -> list[FileFault]:
    """Compare the existing tensors with the config. Returns one fault per file and kind."""
    tensors: defaultdict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for name, tensor in sorted(model.tensors.items()):
        file = tensor.file.name
        dtypes = ("U8",) if is_packed(name) else _FLOATS
        if name not in wanted:
            tensors[file, "that config.json does not ask for"].append((name, ""))
        elif tensor.shape != wanted[name]:
            tensors[file, "of another shape"].append((name, f" is {tensor.shape}, config.json asks for {wanted[name]}"))
        elif tensor.dtype not in dtypes:
            tensors[file, "of another type"].append((name, f" is {tensor.dtype}, not {' or '.join(dtypes)}"))
    faults = []
    for (file, kind), names in tensors.items():
        what = f"holds {len(names)} tensor{'s' * (len(names) > 1)} {kind}: {''.join(names[0])}"
        faults.append(FileFault(file, what, _REMEDY, tuple(name for name, _ in names)))
    return faults
