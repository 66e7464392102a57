"""The model card of what a run has trained: README.md for the hub. It is public, so it holds no path of the user's."""

import re
from pathlib import Path

from huggingface_hub import ModelCardData

from grpo.checkpoint.adapter_files import Adapter
from grpo.run.eval_metric import get_name, get_value
from grpo.run.run_files import STEP_DIRECTORY, RunFiles, parse_step
from grpo.run.run_state import Run
from grpo.stack import hub
from grpo.stack.problem import UserError

_SHOWN = (
    *("lora_rank", "lora_alpha", "target_modules", "actor_learning_rate", "rollout_batch_size", "n_samples_per_prompt"),
    *("train_batch_size", "temperature", "generate_max_len", "advantage_estimator", "policy_loss_type", "init_kl_coef"),
    "seed",
)
_PACKAGES = ("openrlhf", "peft", "transformers", "torch", "vllm", "deepspeed")


def base_id(model: Path, adapter: Adapter) -> str | None:
    """Return the hub id of the base model; None if neither its folder nor the adapter tells."""
    named = str(adapter.config.get("base_model_name_or_path"))
    return hub.find_id(str(model)) or (named if re.fullmatch(r"[\w.-]+/[\w.-]+", named) and hub.is_id(named) else None)


def find_run(adapter: Path) -> tuple[Run, int]:
    """Return the run that has trained an adapter, and the step after which it was saved.

    Raises:
        UserError: if the adapter is not in a run's folder.
    """
    folder = adapter.absolute()
    found = next((parent for parent in folder.parents if RunFiles(parent).is_run()), None)
    if found is None:
        remedy = "name RUN/final or RUN/checkpoints/step_N/adapter, or leave out --card"
        raise UserError(f"{adapter} is not in a run's folder, which has what the card says", remedy)
    run = Run(found)
    return run, parse_step(folder.parent) if STEP_DIRECTORY.fullmatch(folder.parent.name) else run.step


def write_text(model: Path, adapter: Adapter, is_merged: bool, license_id: str) -> str:
    """Return the text of README.md, given the base model's folder and the hub's id of a license."""
    run, step = find_run(adapter.folder)
    base = base_id(model, adapter)
    data = ModelCardData(
        base_model=base, license=license_id, library_name="transformers" if is_merged else "peft",
        pipeline_tag="text-generation", tags=["grpo", "lora"],
    )  # fmt: skip
    lines = ["---", data.to_yaml(), "---", f"# {base or 'gpt-oss'} after {step} steps of GRPO", ""]
    lines += ["The adapter is merged into the model." if is_merged else "A LoRA adapter in PEFT's format.", ""]
    for row in (row for row in run.graded if row["step"] in (0, step)):
        lines.append(f"- held-out {get_name(row)} after step {row['step']}: {get_value(row):.3f} (n={row.get('n')})")
    flags, packages = run.part("flags"), run.read(run.files.environment).get("packages") or {}
    lines += [f"- {name}: {flags[name]}" for name in _SHOWN if name in flags]
    return "\n".join([*lines, *(f"- {name} {packages[name]}" for name in _PACKAGES if name in packages)]) + "\n"
