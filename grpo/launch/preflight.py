"""Everything that can be known to go wrong before Ray starts, with the remedy; seconds, without torch."""

import importlib.metadata
import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo import architecture, checkpoint_files, flags
from grpo.checkpoint_files import CheckpointError, Model
from grpo.environment import CHECKOUT, on_cpu_stack
from grpo.launch import data_files, machine
from grpo.launch.config import Config
from grpo.launch.plan import Plan, size
from grpo.launch.ray_head import MAX_BASE_LENGTH

_GROUP_ESTIMATORS = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")


@dataclass(frozen=True)
class Problem:
    """What is wrong, and what to do about it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}\n    -> {self.remedy}"


def problems(config: Config, plan: Plan, run_dir: Path, is_resumed: bool = False) -> list[Problem]:
    """Run every check; an empty list means that the run can start, or continue where `is_resumed`."""
    checks = (
        check_python(),
        check_patches(),
        check_flags(config),
        check_batches(config),
        check_data(config),
        check_model(config),
        check_gpus(config, plan),
        check_memory(plan),
        () if is_resumed else check_is_new(config, run_dir),
        check_disk(config, plan, run_dir),
        check_ray(),
    )
    return [problem for check in checks for problem in check]


def check_python() -> Iterator[Problem]:
    """Compare Python and the pinned packages with pyproject.toml."""
    if sys.version_info[:2] not in ((3, 11), (3, 12)):
        version = ".".join(map(str, sys.version_info[:2]))
        yield Problem(f"this is Python {version}, the stack needs 3.11 or 3.12", "scripts/setup.sh makes .venv")
    for name, wanted in pins().items():
        try:
            # A local part ("+cpu") names the build, not the version.
            found = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            found = "missing"
        if found != wanted:
            yield Problem(f"{name} is {found}, the pinned version is {wanted}", "scripts/setup.sh installs the lock")


def pins() -> dict[str, str]:
    """Return the exactly pinned packages of pyproject.toml for the stack in use."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stack = "cpu" if on_cpu_stack() else "gpu"
    requirements = project["dependencies"] + project["optional-dependencies"][stack]
    pinned = (re.fullmatch(r"([\w.-]+)(?:\[.*\])?==([\w.]+)", requirement) for requirement in requirements)
    return {match[1]: match[2] for match in pinned if match}


def patch_status() -> dict[str, Any]:
    """Return what `python -m patches status --json` says; state "unknown" and its output where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "patches", "status", "--json"], cwd=CHECKOUT, capture_output=True, text=True
    )
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"state": "unknown", "message": (done.stderr or done.stdout).strip()}


def check_patches() -> Iterator[Problem]:
    """Refuse anything but the whole series, unchanged."""
    status = patch_status()
    if status.get("state") != "applied" or status["applied"] != status["total"]:
        remedy = status.get("next") or "./apply_patches.sh status"
        what = status.get("message") or status.get("error")
        yield Problem(f"OpenRLHF's patches are not in place: {what}", remedy)
    elif status["digest"] != status["expected_digest"]:
        yield Problem("the patched OpenRLHF is not what its patches give", "./apply_patches.sh verify")


def check_flags(config: Config) -> Iterator[Problem]:
    """Combinations that the patched trainer refuses, and some that it would not notice."""
    for text in flags.problems(config.args):
        what, _, remedy = text.partition(": ")
        yield Problem(what, remedy)
    args = config.args
    if args.eval_dataset and not args.remote_rm_url:
        yield Problem("an eval needs a reward function", "set REWARD to a .py file with reward_func")
    if args.use_wandb and not os.environ.get("WANDB_API_KEY"):
        yield Problem("Weights & Biases is on without a key", "export WANDB_API_KEY, or leave out USE_WANDB=1")
    for script in (args.remote_rm_url or "").split(","):
        if script and not script.endswith(".py") and not script.startswith(("http://", "https://")):
            yield Problem(f"the reward {script} is no .py file and no URL", "set REWARD to a .py file with reward_func")
        if script.endswith(".py") and not Path(script).is_file():
            yield Problem(f"the reward function {script} does not exist", "set REWARD to a .py file with reward_func")


def check_batches(config: Config) -> Iterator[Problem]:
    """Batch sizes that DeepSpeed and OpenRLHF divide by each other; most are asserted only after loading."""
    args, samples, ranks = config.args, config.samples_per_rollout, config.actor_ranks
    per_step = args.micro_train_batch_size * ranks
    if args.train_batch_size % per_step:
        yield Problem(
            f"TRAIN_BATCH_SIZE {args.train_batch_size} is no multiple of MICRO_TRAIN_BATCH_SIZE x ranks = "
            f"{args.micro_train_batch_size} x {ranks} = {per_step}",
            f"use {max(1, args.train_batch_size // per_step) * per_step}, or a smaller micro batch",
        )
    if (samples * args.max_epochs) % args.train_batch_size:
        yield Problem(
            f"a rollout has {samples} samples, no multiple of TRAIN_BATCH_SIZE {args.train_batch_size}: "
            "gradients of one rollout would be applied in the next",
            "make ROLLOUT_BATCH_SIZE x N_SAMPLES_PER_PROMPT a multiple of TRAIN_BATCH_SIZE",
        )
    if samples % (args.micro_rollout_batch_size * ranks):
        yield Problem(
            f"{samples} samples cannot be split evenly into micro batches of {args.micro_rollout_batch_size} "
            f"on {ranks} ranks: ranks with less work would wait for ever",
            "let MICRO_ROLLOUT_BATCH_SIZE x ACTOR_GPUS divide ROLLOUT_BATCH_SIZE x N_SAMPLES_PER_PROMPT",
        )
    if args.n_samples_per_prompt < 2 and args.advantage_estimator in _GROUP_ESTIMATORS:
        yield Problem(
            f"{args.advantage_estimator} compares the samples of a prompt, and there is one: no advantage",
            "set N_SAMPLES_PER_PROMPT to 2 or more",
        )


def check_data(config: Config) -> Iterator[Problem]:
    """Read both data files; a stock trainer with too few prompts ends without a step and without an error."""
    args = config.args
    read: dict[str, list[data_files.Record]] = {}
    for variable, path, split in (("TRAIN_DATA", args.prompt_data, "train"), ("EVAL_DATA", args.eval_dataset, "eval")):
        if not path:
            if split == "train":
                yield Problem("no training data", "set TRAIN_DATA to a .jsonl file; python -m data.prepare writes one")
            continue
        labels_of = split if has_own_reward(config) else None
        try:
            read[split] = data_files.read_records(Path(path), args.input_key, args.label_key, labels_of)
        except data_files.DataError as error:
            yield Problem(str(error), f"set {variable} to a .jsonl file; python -m data.prepare writes one")
    count = len(read.get("train", ()))
    if 0 < count < args.rollout_batch_size:
        yield Problem(
            f"{args.prompt_data} has {count} prompts, a rollout takes {args.rollout_batch_size}: no step at all",
            f"set ROLLOUT_BATCH_SIZE to {count} or less, or use more data",
        )
    held_out = {record.prompt: record.line for record in read.get("eval", ())}
    leaked = [record for record in read.get("train", ()) if record.prompt in held_out]
    if leaked:
        yield Problem(
            f"{args.prompt_data}, line {leaked[0].line}: the prompt is also in {args.eval_dataset}, line "
            f"{held_out[leaked[0].prompt]}, and so are {len(leaked) - 1} others",
            "python -m data.prepare --decontaminate leaves out of train what eval has",
        )


def has_own_reward(config: Config) -> bool:
    """Tell whether the reward function is this project's, which reads labels and may have a judge."""
    return Path(config.args.remote_rm_url or "").resolve() == CHECKOUT / "reward" / "reward_func.py"


def check_model(config: Config) -> Iterator[Problem]:
    """Read config and shard headers of what the actor and the engines load; every tensor has to be there."""
    args = config.args
    models: dict[str, Model] = {}
    for variable, name in (("MODEL", args.pretrain), ("ENGINE_MODEL", args.engine_model)):
        if variable == "ENGINE_MODEL" and name == args.pretrain:
            models.update({variable: models["MODEL"]} if "MODEL" in models else {})
            continue
        if not Path(name).is_dir():
            yield Problem(
                f"{variable} {name} is neither a folder nor a model in the hub's cache",
                f"hf download {name} --exclude 'original/*' 'metal/*', or set {variable} to a folder",
            )
            continue
        try:
            model = checkpoint_files.read(Path(name))
            faults = architecture.check(model)
        except CheckpointError as error:
            yield Problem(f"{variable} {name}: {error}", f"set {variable} to a whole gpt-oss checkpoint")
            continue
        yield from (Problem(f"{variable} {name}: {fault.file} {fault.what}", fault.remedy) for fault in faults)
        if not faults:
            models[variable] = model
    if "MODEL" in models:
        yield from check_actor_model(config, models["MODEL"])
    if "ENGINE_MODEL" in models:
        yield from check_engine_model(config, models["ENGINE_MODEL"], models.get("MODEL"))


def check_actor_model(config: Config, model: Model) -> Iterator[Problem]:
    """LoRA targets, lengths, tokenizer."""
    args = config.args
    for target in args.target_modules if isinstance(args.target_modules, list) else []:
        if not model.lora_parameters(1, [target]):
            yield Problem(f"the model has no linear layer {target}", "set TARGET_MODULES to names of its layers")
    context = model.config.get("max_position_embeddings")
    if context and config.max_model_len > context:
        yield Problem(
            f"PROMPT_MAX_LEN + GENERATE_MAX_LEN = {config.max_model_len} tokens, the model has {context}",
            "shorten one of them",
        )
    if not any((model.folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        yield Problem(f"{model.folder} has no tokenizer.json", "download the checkpoint with its tokenizer")
    if args.apply_chat_template and not has_chat_template(model.folder):
        yield Problem(f"{model.folder} has no chat template", "add chat_template.jinja to the checkpoint")


def has_chat_template(folder: Path) -> bool:
    """Tell whether a tokenizer can format a chat."""
    config = folder / "tokenizer_config.json"
    inside = config.is_file() and "chat_template" in json.loads(config.read_text(encoding="utf-8"))
    return inside or (folder / "chat_template.jinja").is_file()


def check_engine_model(config: Config, model: Model, actor: Model | None) -> Iterator[Problem]:
    """Formats and shapes that the engines cannot load, or that are another model than the actor's."""
    if on_cpu_stack() and model.is_mxfp4:
        yield Problem(
            "vLLM on CPU cannot load an MXFP4 checkpoint",
            "python -m scripts.dequantize_checkpoint --help, then set ENGINE_MODEL to the copy",
        )
    tensor_parallel = config.args.vllm_tensor_parallel_size
    heads, key_heads = model.config.get("num_attention_heads"), model.config.get("num_key_value_heads")
    for what, count in (("attention heads", heads), ("key/value heads", key_heads)):
        if count and count % tensor_parallel:
            yield Problem(f"ENGINE_TP {tensor_parallel} does not divide the {count} {what}", "use a divisor of both")
    for key in ("model_type", "num_hidden_layers", "hidden_size", "vocab_size"):
        if actor and actor.config.get(key) != model.config.get(key):
            yield Problem(
                f"ENGINE_MODEL has {key} {model.config.get(key)}, MODEL has {actor.config.get(key)}",
                "let both be the same model",
            )


def check_gpus(config: Config, plan: Plan) -> Iterator[Problem]:
    """The GPUs that Ray has to hand out, unless it simulates them or another cluster has them."""
    if on_cpu_stack() or os.environ.get("RAY_ADDRESS"):
        return
    found = machine.gpus()
    if len(found) < config.gpus:
        yield Problem(
            f"{config.gpus} GPUs are needed ({config.engine_gpus} engines, {config.actor_ranks} actor), "
            f"{len(found)} are visible",
            "lower NUM_ENGINES, ENGINE_TP or ACTOR_GPUS; see nvidia-smi and CUDA_VISIBLE_DEVICES",
        )
        return
    for index, gpu in enumerate(found[: config.gpus]):
        if gpu.used > machine.GB:
            yield Problem(
                f"{size(gpu.used)} of GPU {index} are in use by somebody else", "see nvidia-smi; wait or move"
            )
    if plan.model_bf16_bytes and not config.args.offload:
        share, memory = (
            plan.model_bf16_bytes / config.actor_ranks,
            min(gpu.memory for gpu in found[: config.gpus]),
        )
        if share > 0.8 * memory:
            yield Problem(
                f"{size(int(share))} of the model on each actor GPU leave too little of {size(memory)}",
                "set OFFLOAD=1, or more ACTOR_GPUS",
            )


def check_memory(plan: Plan) -> Iterator[Problem]:
    """Host memory and /dev/shm, on this node."""
    if os.environ.get("RAY_ADDRESS"):
        return
    free, shared = machine.memory_available(), machine.shared_memory_free()
    if plan.host_bytes and free < plan.host_bytes:
        largest = max(plan.host_memory, key=lambda part: plan.host_memory[part])
        yield Problem(
            f"{size(free)} of memory are free, the run needs about {size(plan.host_bytes)}, "
            f"{size(plan.host_memory[largest])} of it for: {largest}",
            "end other programs, use fewer engines or ranks, or a larger machine",
        )
    if shared < plan.object_store_bytes:
        yield Problem(
            f"/dev/shm has {size(shared)} free, Ray's object store takes {size(plan.object_store_bytes)}",
            "enlarge it (docker run --shm-size=16g; mount -o remount,size=16G /dev/shm)",
        )


def check_is_new(config: Config, run_dir: Path) -> Iterator[Problem]:
    """A run that starts has its places to itself."""
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        yield Problem(f"the run directory {run_dir} exists and is not empty", "give another --run-dir, or --resume it")
    checkpoints, metrics = Path(config.args.ckpt_path), Path(config.args.metrics_dir)
    if any(checkpoints.glob("step_*")):
        yield Problem(f"{checkpoints} holds the checkpoints of another run", "give another CKPT_DIR for each run")
    if metrics != run_dir and any((metrics / name).exists() for name in ("metrics.jsonl", "eval.jsonl")):
        yield Problem(f"{metrics} holds the metrics of another run", "give another METRICS_DIR for each run")


def check_disk(config: Config, plan: Plan, run_dir: Path) -> Iterator[Problem]:
    """Space and rights where results go."""
    for folder in {run_dir, Path(config.args.ckpt_path), Path(config.args.metrics_dir)}:
        parent = machine.existing_parent(folder)
        if not os.access(parent, os.W_OK | os.X_OK) or not parent.is_dir():
            yield Problem(f"{folder} cannot be created in {parent}", "choose a folder that you may write to")
    free = machine.disk_free(Path(config.args.ckpt_path))
    if plan.disk_bytes and free < plan.disk_bytes + machine.GB:
        yield Problem(
            f"{size(free)} of disk are free, checkpoints need {size(plan.disk_bytes)} and logs 1 GB",
            "set CKPT_DIR to another disk, or lower MAX_CHECKPOINTS",
        )


def check_ray() -> Iterator[Problem]:
    """A cluster to join has to answer; one of our own needs ports and a folder for sockets."""
    address = os.environ.get("RAY_ADDRESS")
    if address == "auto":
        yield Problem("RAY_ADDRESS is auto", "name the cluster as HOST:PORT, or unset RAY_ADDRESS")
    elif address:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except (OSError, ValueError) as error:
            yield Problem(
                f"no Ray cluster answers at RAY_ADDRESS {address} ({error})", "start it, or unset RAY_ADDRESS"
            )
    if address:
        return
    try:
        with socket.socket() as probe:
            probe.bind(("", 0))
    except OSError as error:
        yield Problem(f"no port can be opened ({error})", "allow listening sockets in this sandbox or container")
    if not os.access("/tmp", os.W_OK) and len(os.environ.get("TMPDIR", "")) > MAX_BASE_LENGTH - len("/grpo-12345678"):
        yield Problem("there is no short writable folder for sockets", "set TMPDIR to one of at most 15 characters")
