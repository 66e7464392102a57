"""What the driver tells Ray, and when its engines are ready."""

import os
from collections.abc import Sequence
from typing import Any

from grpo.secrets import is_secret

# Environment variables exported after a Ray cluster was started do not reach its workers: these travel with the job.
# Secrets are not in this list, since Ray writes a job's runtime_env to its logs: export them before `ray start`.
FORWARDED_PREFIXES = ("GRPO_", "VLLM_", "OMP_", "MKL_", "NCCL_", "DS_", "TORCH", "PYTORCH_", "HF_HUB_", "HF_HOME")
FORWARDED_NAMES = ("PYTHONPATH", "PATH", "TOKENIZERS_PARALLELISM", "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES")


def runtime_env(environ: dict[str, str] | None = None) -> dict[str, dict[str, str]]:
    """Return the ``runtime_env`` of ``ray.init``: the variables of this process that the workers need, no secrets."""
    environ = dict(os.environ) if environ is None else environ
    variables = {
        name: value
        for name, value in environ.items()
        if (name in FORWARDED_NAMES or name.startswith(FORWARDED_PREFIXES))
        and (name in FORWARDED_NAMES or not is_secret(name))
    }
    variables.setdefault("TOKENIZERS_PARALLELISM", "true")
    variables.setdefault("NCCL_DEBUG", "WARN")
    return {"env_vars": variables}


def engines_ready(engines: Sequence[Any] | None) -> list[Any]:
    """Return one reference per vLLM engine that resolves when the engine has started, or raises why it has not.

    OpenRLHF waits for the actor alone and would start training first. ``ray.get`` raises the first error of any
    reference at once.
    """
    return [engine.get_num_unfinished_requests.remote() for engine in engines or []]
