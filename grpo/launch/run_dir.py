"""The run directory: what was run, on what, with which patches. Holds no secrets."""

import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo.checkpoint import adapter_files, digests
from grpo.environments import settings as environment_settings
from grpo.flags.parser import Asked
from grpo.launch import recorded
from grpo.launch.config import Config
from grpo.launch.plan import Plan
from grpo.run.run_files import RunFiles
from grpo.run.run_state import FINISHED, Run
from grpo.stack import cluster, machine
from grpo.stack.checkout import CHECKOUT, git_revision, is_cpu_stack
from grpo.stack.json_files import replace
from grpo.stack.problem import UserError
from grpo.stack.secrets import is_secret, redact
from reward import settings as judge_settings
from reward import user_files

# Variables that change results or speed; those of the project are in config.json
_RECORDED = ({*cluster.FORWARDED_PREFIXES} - {"GRPO_"}) | {"CUDA_", "PYTHONPATH", "RAY_ADDRESS", "TOKENIZERS_"}


def default_run_dir(asked: Asked) -> Path:
    """Return a new folder under runs/, named for the model and the time."""
    return CHECKOUT / "runs" / f"{_find_name(asked)}-{time.strftime('%Y%m%d-%H%M%S')}"


def _find_name(asked: Asked) -> str:
    return "tiny" if asked.tiny else Path(asked.values.get("pretrain") or "run").name


def find_run(which: str) -> Path:
    """Return the folder of the run to continue.

    Args:
        which: a run directory, or "latest": the newest under runs/ that has not finished.

    Raises:
        UserError: if there is no such run, or it belongs to another user.
    """
    run = RunFiles(Path(which).absolute())
    if which == "latest":
        found = _find_latest()
        if found is None:
            raise UserError("runs/ has no run that has not finished", "name a run directory: --resume DIR")
        run = found
    elif not run.config.is_file():
        raise UserError(f"{run.folder} is not a run directory: config.json is missing", "name a run directory")
    run.refuse_another_owner()
    return run.folder


def _find_latest() -> RunFiles | None:
    files = sorted((CHECKOUT / "runs").glob("*/config.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    runs = (Run(file.parent) for file in files if RunFiles(file.parent).is_run())
    return next((run.files for run in runs if not run.config_fault and run.state != FINISHED), None)


def write(
    run_dir: Path,
    asked: Asked,
    config: Config,
    plan: Plan,
    patch_status: dict[str, Any],
    judge_off: str = "",
    is_stand_in: bool = False,
) -> None:
    """Write everything known before the run starts or continues into the run directory.

    Args:
        judge_off: why the judge is off; "" if it is on.
        is_stand_in: whether a local server answers in place of the judge.
    """
    files, stack = RunFiles(run_dir, Path(config.args.metrics_dir)), "cpu" if is_cpu_stack() else "gpu"
    files.logs.mkdir(parents=True, exist_ok=True)
    run_dir.chmod(0o700)  # even if the folder is older or made by the user
    for folder in (config.args.ckpt_path, config.args.metrics_dir):
        Path(folder).mkdir(parents=True, exist_ok=True)
    _keep_adapter(config, files)
    _write_json(
        files.config,
        {
            "name": _find_name(asked),
            "stack": stack,
            "flags": config.values,
            "given": config.given,
            "changes": asked.list_differences(),
            "script": asked.script,
            "sources": asked.sources,
            "data_sha256": {
                name: data_digest(Path(file))
                for name in ("prompt_data", "eval_dataset")
                if (file := getattr(config.args, name))
            },
            "adapter_sha256": data_digest(files.start / adapter_files.WEIGHTS) if config.args.adapter else None,
            "judge": judge_settings.variables(),
            "reward": user_files.variables(),
            "reward_sha256": user_files.digests(),
            "environment": environment_settings.variables(),
            "judge_off": judge_off,
            "judge_is_stand_in": is_stand_in,
            "plan": asdict(plan),
        },
    )
    _write_json(files.environment, environment())
    _write_json(files.patches, patch_status)
    files.command.write_text(redact(recorded.make_script(asked, run_dir, config.args.template_date)), encoding="utf-8")
    files.command.chmod(0o700)


def _keep_adapter(config: Config, files: RunFiles) -> None:
    """Copy the adapter that the run starts from, once: a resume needs it, and its own folder may be gone by then."""
    if not config.args.adapter or files.start.is_dir():
        return
    aside = files.start.with_name(f".{files.start.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    for name in (adapter_files.CONFIG, adapter_files.WEIGHTS):
        shutil.copyfile(Path(config.args.adapter) / name, aside / name)
    digests.write(aside)
    aside.rename(files.start)


def data_digest(file: Path) -> str:
    """Return the SHA-256 of a file that the run reads."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _assignments() -> list[str]:
    """Return the variables of judge, reward and environment as assignments."""
    variables = judge_settings.variables() | user_files.variables() | environment_settings.variables()
    return [f"GRPO_{name}={shlex.quote(value)}" for name, value in variables.items()]


def show_command(argv: list[str]) -> str:
    """Format a command line for people: the variables of judge, reward and environment, then one flag a line."""
    variables = [f"{assignment} \\" for assignment in _assignments()]
    lines = ["python -m openrlhf.cli.train_ppo_ray", *(f"    {line}" for line in recorded.group_flags(argv))]
    return "\n".join([*variables, " \\\n".join(lines)])


def environment() -> dict[str, Any]:
    """Return versions, hardware, revision and the recorded variables."""
    packages = {dist.name: dist.version for dist in importlib.metadata.distributions()}
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "hardware": machine.describe(),
        "git": git_revision(),
        "variables": {
            n: os.environ[n] for n in sorted(os.environ) if n.startswith(tuple(_RECORDED)) and not is_secret(n)
        },
        "packages": dict(sorted(packages.items())),
    }


def _write_json(file: Path, value: Any) -> None:
    replace(file, redact(json.dumps(value, indent=2, default=str)) + "\n")
