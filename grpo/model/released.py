"""The architectures of the released gpt-oss models, so that a run can be planned before a model is downloaded."""

from pathlib import Path

from grpo.model.architecture import Architecture
from grpo.model.model_files import CheckpointError, Model, Tensor, read_whole
from grpo.stack import hub

_SHARED = {
    "hidden": 2880,
    "heads": 64,
    "key_value_heads": 8,
    "head_dim": 64,
    "experts_per_token": 4,
    "intermediate": 2880,
    "vocabulary": 201_088,
}

# From the config.json of each.
CONTEXT = 131_072  # tokens
RELEASED = {
    "openai/gpt-oss-120b": Architecture(layers=36, experts=128, attention_bias=True, mxfp4=True, **_SHARED),
    "openai/gpt-oss-20b": Architecture(layers=24, experts=32, attention_bias=True, mxfp4=True, **_SHARED),
}


def as_model(name: str) -> Model | None:
    """Return a released model as its files would be read, without them; None for another name."""
    if name not in RELEASED:
        return None
    architecture, folder = RELEASED[name], Path(name)
    tensors = {tensor: Tensor(folder, "", shape, 0, 0) for tensor, shape in architecture.list_stored().items()}
    return Model(folder, architecture.config() | {"max_position_embeddings": CONTEXT}, tensors)


def find(name: str) -> Model:
    """Return a model: by its files, or a released one without them.

    Raises:
        CheckpointError: if it is neither, or a file has a fault.
    """
    if model := as_model(name):
        return model
    if not Path(name).is_dir():
        what, remedy = absence(name)
        raise CheckpointError(f"{name} {what}", remedy)
    return read_whole(Path(name))


def id_without_owner(name: str) -> str | None:
    """Return the hub id of a released model that is given without its owner; None for another name."""
    return next((released for released in RELEASED if released.endswith(f"/{name}")), None)


def absence(name: str) -> tuple[str, str]:
    """Return what is wrong with the name of a model that has no folder, and the remedy."""
    if whole := id_without_owner(name):
        return "is not a folder", f"the hub's id is {whole}"
    if "gpt-oss" in name.lower() or not hub.is_id(name):
        return hub.absence(name)
    remedy = f"use {' or '.join(RELEASED)}, or name the folder of another gpt-oss"
    return "is not on this machine, and only gpt-oss can be trained", remedy
