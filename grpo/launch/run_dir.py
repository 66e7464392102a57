"""The run directory: what was run, on what, with which patches. And the commands that a run shows. Holds no secrets."""

import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo.checkpoint import adapter_files, digests
from grpo.environments import settings as environment_settings
from grpo.flags import ours
from grpo.flags.parser import Asked, make_parser
from grpo.flags.upstream import make_words, parse_given, trainer_parser
from grpo.launch.checks.reward import is_users
from grpo.launch.config import Config
from grpo.launch.judge import RunJudge
from grpo.launch.plan import Plan
from grpo.run.eval_metric import EXACT_MATCH, choose_eval_metric
from grpo.run.run_files import RunFiles
from grpo.run.run_state import FINISHED, Run
from grpo.stack import cluster, machine
from grpo.stack.checkout import CHECKOUT, git_revision, is_cpu_stack
from grpo.stack.json_files import read_bytes, replace
from grpo.stack.problem import UserError
from grpo.stack.secrets import is_secret, redact
from reward import settings as judge_settings
from reward import user_files

# Variables that change results or speed; those of the project are in config.json
_RECORDED = ({*cluster.FORWARDED_PREFIXES} - {"GRPO_"}) | {"CUDA_", "PYTHONPATH", "RAY_ADDRESS", "TOKENIZERS_"}
_PLACES = ("ckpt_path", "metrics_dir")
_OF_RUN = (*_PLACES, "template_date")
# Options of eval.evaluate in an environment, and the variables of a run
_PLAYED = {"environment": "ENVIRONMENT", "library": "LIBRARY", "turns": "TURN_LIMIT", "seconds": "ROLLOUT_SECONDS"}
_PLAYED |= {"tool-seconds": "TOOL_SECONDS", "score-seconds": "SCORE_SECONDS"}
_SCRIPT = """#!/usr/bin/env bash
# Every flag of this run, as train_grpo.sh, its options, and the command line set them. --resume reads them here. As a
# command, this file starts another run with them, and more flags win: ./command.sh --steps 5
FLAGS=(
{flags}
)
# What follows from them in this run:
{follows}
exec {launcher} -- "${{FLAGS[@]}}" "$@"
"""


def default_run_dir(asked: Asked) -> Path:
    """Return a new folder under runs/, named for the model and the time."""
    return CHECKOUT / "runs" / f"{_find_name(asked)}-{time.strftime('%Y%m%d-%H%M%S')}"


def _find_name(asked: Asked) -> str:
    return "tiny" if asked.tiny else Path(asked.values.get("pretrain") or "run").name


def find_run(which: str) -> Path:
    """Return a run directory, or that of "latest": the newest under runs/ that has not finished.

    Raises UserError if there is no such run, or it belongs to another user.
    """
    run = RunFiles(Path(which).absolute())
    if which == "latest":
        files = sorted((CHECKOUT / "runs").glob("*/config.json"), key=lambda file: file.stat().st_mtime, reverse=True)
        runs = (Run(file.parent) for file in files if RunFiles(file.parent).is_run())
        found = next((run.files for run in runs if not run.config_fault and run.state != FINISHED), None)
        if found is None:
            raise UserError("runs/ has no run that has not finished", "name a run directory: --resume DIR")
        run = found
    elif not run.config.is_file():
        above = next((folder for folder in run.folder.parents if RunFiles(folder).is_run()), None)
        remedy = f"give {above}, which continues from its newest checkpoint" if above else "name a run directory"
        raise UserError(f"{run.folder} is not a run directory: config.json is missing", remedy)
    run.refuse_another_owner()
    return run.folder


def read_asked(folder: Path) -> Asked:
    """Return what a run was asked for so far: its flags from command.sh, and what set them from config.json.

    Its own folders and date are left out: they follow from where it lies, and from its configuration. Raises UserError
    if another version made the run, or its files are damaged.
    """
    files = RunFiles(folder)
    record, words = files.read_config(), _read_words(files.command)
    script, sources = record.get("script"), record.get("sources")
    if not isinstance(script, list) or not isinstance(sources, dict) or words is None:
        raise UserError(
            f"{files.command} lacks the flags of the run: another version of this project made it, or it is damaged",
            f"resume it with the commit that {files.environment} names (git checkout), or start a new run from its "
            "adapter: --adapter CHECKPOINT/adapter",
        )
    try:
        values = parse_given(make_parser(), words)
    except UserError as error:
        raise UserError(f"{files.command}: {error.problem.what}", error.problem.remedy) from error
    is_tiny, gpus = values.pop("tiny", False), values.pop("gpus", None)
    values = {name: value for name, value in values.items() if name not in _OF_RUN}
    named = {name: str(sources.get(name, files.command.name)) for name in values}
    return Asked(values, named, [str(word) for word in script], tiny=is_tiny, gpus=gpus, resume=str(folder))


def _read_words(file: Path) -> list[str] | None:
    """Return the words of FLAGS in command.sh; None if it has none."""
    try:
        text = read_bytes(file).decode()
        return shlex.split(text.partition("\nFLAGS=(\n")[2].partition("\n)\n")[0], comments=True) or None
    except OSError:
        return None
    except ValueError as error:  # not text, or an open quotation mark
        raise UserError(f"{file}: {error}", "correct its FLAGS") from error


def write(
    run_dir: Path, asked: Asked, config: Config, plan: Plan, patch_status: Mapping[str, Any], judge: RunJudge
) -> None:
    """Write everything known before the run starts or continues into the run directory."""
    files = RunFiles(run_dir, Path(config.args.metrics_dir))
    files.logs.mkdir(parents=True, exist_ok=True)
    run_dir.chmod(0o700)  # even if the folder is older or made by the user
    for folder in (config.args.ckpt_path, config.args.metrics_dir):
        Path(folder).mkdir(parents=True, exist_ok=True)
    _keep_adapter(config, files)
    data = {name: file for name in ("prompt_data", "eval_dataset") if (file := getattr(config.args, name))}
    record = {
        "name": _find_name(asked),
        "stack": "cpu" if is_cpu_stack() else "gpu",
        "openrlhf": importlib.metadata.version("openrlhf"),
        "flags": config.values,
        "given": config.given,
        "changes": asked.list_differences(),
        "script": asked.script,
        "sources": asked.sources,
        "data_sha256": {name: data_digest(Path(file)) for name, file in data.items()},
        "adapter_sha256": data_digest(files.start / adapter_files.WEIGHTS) if config.args.adapter else None,
        "judge": judge_settings.variables(),
        "reward": user_files.variables(),
        "reward_sha256": user_files.digests(),
        "environment": environment_settings.variables(),
        "judge_off": judge.why_off,
        "judge_is_stand_in": judge.is_stand_in,
        "plan": asdict(plan),
    }
    for file, value in ((files.config, record), (files.environment, environment()), (files.patches, patch_status)):
        replace(file, redact(json.dumps(value, indent=2, default=str)) + "\n")
    files.command.write_text(redact(make_script(asked, run_dir, config)), encoding="utf-8")
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
    return hashlib.sha256(read_bytes(file)).hexdigest()


def environment() -> dict[str, Any]:
    """Return versions, hardware, revision and the recorded variables."""
    packages = {dist.name: dist.version for dist in importlib.metadata.distributions()}
    names = [name for name in sorted(os.environ) if name.startswith(tuple(_RECORDED)) and not is_secret(name)]
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "hardware": machine.describe(),
        "git": git_revision(),
        "variables": {name: os.environ[name] for name in names},
        "packages": dict(sorted(packages.items())),
    }


def make_script(asked: Asked, run_dir: Path, config: Config) -> str:
    """Return command.sh. Places in the run directory are no flags of it: another run has its own."""
    parser = make_parser()
    values = {name: parser.get_default(name) for name in (*ours.DEFAULTS, *ours.EXPORTED)} | asked.values
    values |= {"tiny": asked.tiny or None, "gpus": asked.gpus, "template_date": config.args.template_date}
    values |= {name: None for name in _PLACES if Path(asked.values.get(name) or "/").is_relative_to(run_dir)}
    follows = {name: value for name, value in config.given.items() if values.get(name) is None}
    flags, rest = (group_flags(make_words(one, of)) for one, of in ((parser, values), (trainer_parser(), follows)))
    return _SCRIPT.format(
        flags="\n".join(f"    {line}" for line in flags),
        follows="\n".join("#   " + line.replace("\n", "\\n") for line in rest),
        launcher=shlex.quote(str(CHECKOUT / "scripts" / "launch.sh")),
    )


def group_flags(words: Sequence[str]) -> list[str]:
    """Return a command line in lines, each a flag with its values."""
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word)
    return [shlex.join(line) for line in lines]


def show_command(argv: list[str]) -> str:
    """Format a command line for people: the variables of judge, reward and environment, then one flag a line."""
    given = judge_settings.variables() | user_files.variables() | environment_settings.variables()
    variables = [f"GRPO_{name}={shlex.quote(value)} \\" for name, value in given.items()]
    lines = ["python -m openrlhf.cli.train_ppo_ray", *(f"    {line}" for line in group_flags(argv))]
    return "\n".join([*variables, " \\\n".join(lines)])


def describe_evaluation(config: Config, adapter: Path | None) -> str:
    """Return a line for the user: the command that evaluates an adapter as the run does, or why there is none."""
    args = config.args
    given = environment_settings.variables() if environment_settings.has_environment(args) else {}
    if not args.eval_dataset:
        why = "there are no held-out problems; set EVAL_DATA"
    elif choose_eval_metric(args) != EXACT_MATCH and not is_users(config):
        why = "eval.evaluate does not ask a server for rewards; the run's held-out scores are in eval.jsonl"
    elif len(given.get("ENVIRONMENT", "").split()) > 1 and not Path(given["ENVIRONMENT"]).is_file():
        why = "eval.evaluate plays one environment, and this run has several; see docs/evaluation.md"
    else:
        return f"evaluate     {build_shell_command('eval.evaluate', *_list_eval_words(config, adapter, given))}"
    return f"evaluate     no command: {why}"


def _list_eval_words(config: Config, adapter: Path | None, given: Mapping[str, str]) -> list[str]:
    args = config.args
    options: dict[str, Any] = {
        "model": args.engine_model,
        "adapter": adapter,
        "data": args.eval_dataset,
        "n": args.eval_n_samples_per_prompt,
        "max-tokens": args.generate_max_len,
        "temperature": f"{args.eval_temperature:g}",
        "tensor-parallel": args.vllm_tensor_parallel_size,
        "date": args.template_date,
        "thinking-delimiter": None if args.thinking_budget is None else args.thinking_delimiter,
        "out": f"evals/{Path(args.run_dir).name}",
    }
    same = ("reasoning_effort", "template_variables", "thinking_budget", "answer_budget")
    options |= {name.replace("_", "-"): getattr(args, name) for name in same}
    if given:
        options |= {option: given.get(name) for option, name in _PLAYED.items()}
        options["max-model-len"] = config.max_model_len
    words = [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]
    if is_users(config) and not given:
        rewards = user_files.from_environment()
        words += ["--reward", *(str(one.path) for one in rewards)]
        if any(one.weight != 1 for one in rewards):
            words += ["--reward-weights", *(str(one.weight) for one in rewards)]
    return words


def build_shell_command(module: str, *words: str) -> str:
    """Return the command that starts a module in a new shell in this folder."""
    here = Path.cwd() == CHECKOUT
    script = "scripts/env.sh" if here else str(CHECKOUT / "scripts" / "env.sh")
    python = ["python", "-m"] if here else ["python", "-P", "-m"]
    return f"source {shlex.quote(script)} && {shlex.join([*python, module, *words])}"
