"""The adapter that a run starts from: it must be one that the run's settings could have made, of the run's model."""

import math
from collections.abc import Iterator
from pathlib import Path

from grpo.checkpoint import adapter_base, adapter_files, digests
from grpo.checkpoint.adapter_files import Adapter
from grpo.launch.config import Config
from grpo.launch.run_dir import data_digest
from grpo.model import model_files
from grpo.model.architecture import TARGETS, Architecture
from grpo.model.model_files import CheckpointError, Model
from grpo.run.run_files import RunFiles
from grpo.stack import hub
from grpo.stack.problem import Problem


def adapter_as_model(folder: Path) -> Problem | None:
    """Return what is wrong with a model's folder that is an adapter's; None for another one."""
    file = folder / adapter_files.CONFIG
    if not file.is_file() or (folder / "config.json").exists():
        return None
    try:
        base = model_files.read_json(file).get("base_model_name_or_path")
    except CheckpointError:
        base = None
    return Problem(f"MODEL {folder} is an adapter", f"set ADAPTER={folder} MODEL={base or 'its base model'}")


def place(config: Config) -> Path:
    """Return the folder of the adapter: the run's own copy, once there is one."""
    copy = RunFiles(Path(config.args.run_dir)).start
    return copy if copy.is_dir() else Path(config.args.adapter)


def check_adapter(config: Config, model: Model | None) -> Iterator[Problem]:
    """Compare the adapter with the model and the settings, and look at its values.

    Args:
        model: the actor's, or what is known of it without its files; None if nothing is.
    """
    if not config.args.adapter:
        return
    folder = place(config)
    try:
        adapter = adapter_files.read(folder)
    except CheckpointError as error:
        yield Problem(f"ADAPTER: {error.problem.what}", error.problem.remedy)
        return
    faults = adapter_base.check_against(adapter, model) if model else list(adapter.faults)
    yield from (Problem(f"ADAPTER {folder}: {fault.file} {fault.what}", fault.remedy) for fault in faults)
    if faults:
        return
    yield from _check_settings(config, adapter, Architecture.from_config(model.config) if model else None)
    if broken := adapter_files.non_finite(adapter):
        yield Problem(f"ADAPTER {folder} has NaN or infinity in {broken[0]}", "use the adapter of an earlier step")


def _check_settings(config: Config, adapter: Adapter, base: Architecture | None) -> Iterator[Problem]:
    args = config.args
    if adapter.config.get("use_rslora"):
        alpha = adapter.alpha * math.sqrt(adapter.rank)
        yield Problem(
            f"ADAPTER {adapter.folder} has use_rslora, so its scale is lora_alpha / sqrt(r); a run's is lora_alpha / r",
            f"in a copy of it, set use_rslora to false and lora_alpha to {alpha:g} in {adapter_files.CONFIG}, which is "
            "the same scale",
        )
        return
    of_adapter = {
        "LORA_RANK": f"{adapter.rank}",
        "LORA_ALPHA": f"{adapter.alpha:g}",
        "TARGET_MODULES": " ".join(adapter.projections),
    }
    targets = [name for name in TARGETS if name in args.target_modules]
    of_run = {"LORA_RANK": f"{args.lora_rank}", "LORA_ALPHA": f"{args.lora_alpha}", "TARGET_MODULES": " ".join(targets)}
    if base and (rank := adapter.find_expert_rank(base)):
        of_adapter["EXPERT_RANK"] = f"{rank}"
        of_run["EXPERT_RANK"] = f"{base.find_expert_rank(args)}"
    if differing := [name for name, value in of_run.items() if value != of_adapter[name]]:
        listed = ", ".join(f"{name} {of_adapter[name]} and not {of_run[name]}" for name in differing)
        remedy = " ".join(f"{name}={_quote(of_adapter[name])}" for name in differing)
        yield Problem(f"ADAPTER {adapter.folder} has {listed}", f"set {remedy}")


def _quote(value: str) -> str:
    return f'"{value}"' if " " in value else value


def describe(config: Config) -> list[str]:
    """Return where the run starts if that is an adapter, and what a user should know of it; one line each."""
    if not config.args.adapter or config.args.resume_from:
        return []
    folder = place(config)
    adapter = adapter_files.read(folder)
    digest = data_digest(folder / adapter_files.WEIGHTS)
    lines = [f"adapter      the run starts from {config.args.adapter}, sha256 {digest[:12]}"]
    if not digests.is_sealed(folder):
        lines.append(digests.describe_unverified(folder))
    base, model = adapter.config.get("base_model_name_or_path"), config.args.pretrain
    if adapter.base is None and base not in (None, "", model, hub.find_id(model)):
        lines.append(f"the adapter names {base} as its base, and MODEL is {model}: only the shapes were compared")
    return lines
