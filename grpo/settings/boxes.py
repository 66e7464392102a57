"""Smaller boxes, and the tiny run: other values of some settings, nothing else."""

from collections.abc import Mapping

from grpo.stack import checkout

ENGINE_SHARE = 0.9  # of a GPU that an engine has alone
_SHAPE = ("NUM_ENGINES", "ENGINE_TP", "ACTOR_GPUS")
# GPUs of a box (--gpus): its values. A box of 8 has those of the recipe.
BOXES = {
    8: {},
    4: {"NUM_ENGINES": "1", "ENGINE_TP": "2", "ACTOR_GPUS": "2"},
    2: {"NUM_ENGINES": "1", "ENGINE_TP": "1", "ACTOR_GPUS": "1", "ACTOR_SHARD": "none"},
    1: {"NUM_ENGINES": "1", "ENGINE_TP": "1", "ACTOR_GPUS": "1", "ACTOR_SHARD": "engine", "COLOCATE": "1"},
}
# Engines and actor that share GPUs have the whole box each.
_SHARED = {8: ("4", "2", "8"), 4: ("2", "2", "4"), 2: ("2", "1", "2")}
_TINY_PAIRS = 2
_TINY_ENGINE = 6e9  # bytes, most of which are vLLM's buffers: a large cache takes seconds to start

TINY = {
    "NAME": "tiny",
    "NUM_ENGINES": "1",
    "ENGINE_TP": "1",
    "ACTOR_GPUS": "2",
    "ROLLOUT_BATCH_SIZE": "16",
    "N_SAMPLES_PER_PROMPT": "8",
    "TRAIN_BATCH_SIZE": "64",
    "MICRO_TRAIN_BATCH_SIZE": "16",
    "MICRO_ROLLOUT_BATCH_SIZE": "16",
    "PROMPT_MAX_LEN": "128",
    "GENERATE_MAX_LEN": "48",
    "EVAL_N_SAMPLES_PER_PROMPT": "1",
    "LEARNING_RATE": "2e-3",  # a new adapter on a model of a few million parameters needs large steps
    "LR_SCHEDULER": "constant_with_warmup",
    "LORA_RANK": "8",
    "LORA_ALPHA": "16",
    "PERSISTENCE_THRESHOLD": "0",  # partitions everything, as with the 120b
    "NUM_EPISODES": "1",
    "STEPS": "10",
    "SAVE_STEPS": "5",
}


def list_box_values(
    gpus: int | None, is_tiny: bool, is_shared: bool, is_paired: bool = False, can_pair: bool = True
) -> dict[str, str]:
    """Return the values of a box.

    Args:
        gpus: of --gpus; None without it.
        is_tiny: a tiny run without --gpus has a shape of its own.
        is_shared: whether engines and actor share GPUs.
        is_paired: whether each GPU has an engine and a rank of the actor with one copy of the model.
        can_pair: whether the GPUs allow that. If not, an engine and an actor on one GPU hold the model twice.
    """
    if is_paired:
        count = str(gpus or (_TINY_PAIRS if is_tiny else 8))
        return dict(zip(_SHAPE, (count, "1", count), strict=True)) | {"COLOCATE": "1"}
    shape = _SHARED.get(gpus or (0 if is_tiny else 8), ()) if is_shared else ()
    values = BOXES[gpus or 8] | dict(zip(_SHAPE, shape, strict=False))
    return values if can_pair or gpus != 1 else values | {"ACTOR_SHARD": "none"}


def list_tiny_values(given: Mapping[str, str], gpu_bytes: int = 0) -> dict[str, str]:
    """Return the values of a tiny run, whose model and problems lie in the checkout's cache.

    Args:
        given: what the user set.
        gpu_bytes: of the smallest GPU; 0 if none is known.
    """
    folder = checkout.TINY_MODEL
    engines = "bf16" if checkout.is_cpu_stack() else "mxfp4"  # vLLM cannot load MXFP4 on CPU
    values = TINY | {"MODEL": str(folder / "mxfp4"), "ENGINE_MODEL": str(folder / engines)}
    if checkout.is_cpu_stack():
        values["ENFORCE_EAGER"] = "1"  # a CPU has no graphs
    if gpu_bytes and not given.get("MODEL"):
        values["GPU_MEMORY_UTILIZATION"] = f"{min(ENGINE_SHARE, _TINY_ENGINE / gpu_bytes):.3f}"
    values["TRAIN_DATA"] = str(folder / "train.jsonl")
    if given.get("ENVIRONMENT"):
        values["PROMPT_MAX_LEN"] = "208"  # with the instructions of tools
    return values
