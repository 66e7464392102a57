"""The adapter that a run starts from: it must be one that the run's settings could have made, of the run's model."""

import math
from collections.abc import Iterator
from pathlib import Path

from grpo.checkpoint import adapter_files
from grpo.checkpoint.adapter_files import Adapter
from grpo.launch.config import Config
from grpo.model.architecture import TARGETS, Architecture
from grpo.model.model_files import CheckpointError, Model
from grpo.run.run_files import RunFiles
from grpo.stack.problem import Problem


def check_adapter(config: Config, model: Model | None) -> Iterator[Problem]:
    """Compare the adapter with the model, or what is known of it, and the settings, and look at its values."""
    if not config.args.adapter:
        return
    try:
        copy = RunFiles(Path(config.args.run_dir)).start  # once the run has it
        adapter = adapter_files.read(copy if copy.is_dir() else Path(config.args.adapter))
    except CheckpointError as error:
        yield Problem(f"--adapter: {error.problem.what}", error.problem.remedy)
        return
    faults = adapter_files.check_against(adapter, model) if model else []
    yield from (Problem(f"--adapter {adapter.folder}: {fault.file} {fault.what}", fault.remedy) for fault in faults)
    if faults:
        return
    if adapter.config.get("use_rslora"):
        yield Problem(
            f"--adapter {adapter.folder} has use_rslora: its scale is lora_alpha / sqrt(r), and a run's lora_alpha / r",
            f"in a copy, set use_rslora to false and lora_alpha to {adapter.alpha * math.sqrt(adapter.rank):g}",
        )
    elif differing := _compare(config, adapter, Architecture.from_config(model.config) if model else None):
        listed = ", ".join(f"{name} {has} and not {wanted}" for name, (has, wanted) in differing.items())
        remedy = " ".join(f"{name} {has}" for name, (has, _) in differing.items())
        yield Problem(f"--adapter {adapter.folder} has {listed}", f"set {remedy}")
    if broken := adapter_files.non_finite(adapter):
        yield Problem(f"--adapter {adapter.folder} has NaN or infinity in {broken[0]}", "use that of an earlier step")


def _compare(config: Config, adapter: Adapter, base: Architecture | None) -> dict[str, tuple[str, str]]:
    """Return the settings that differ: the adapter's value and the run's."""
    args = config.args
    targets = " ".join(name for name in TARGETS if name in args.target_modules)
    values = {
        "--lora_rank": (f"{adapter.rank}", f"{args.lora_rank}"),
        "--lora_alpha": (f"{adapter.alpha:g}", f"{args.lora_alpha}"),
        "--target_modules": (" ".join(adapter.projections), targets),
    }
    if base and (rank := adapter.find_expert_rank(base)):
        values["--expert_rank"] = (f"{rank}", f"{base.find_expert_rank(args)}")
    return {name: (has, wanted) for name, (has, wanted) in values.items() if has != wanted}
