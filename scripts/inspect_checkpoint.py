"""Say what a checkpoint directory holds, and whether it is complete.

    python -m scripts.inspect_checkpoint DIR [--json]

DIR is a gpt-oss base model (MXFP4 or bf16), a LoRA adapter in PEFT's format, a run's `step_N` or its `checkpoints`. For
a base model only the headers are read and a prompt is rendered, so the 120b takes seconds. For an adapter all values
are read. Adapters and steps are verified against their SHA256SUMS. Checkpoints of earlier versions have none, which is
reported.

Exit code: 0 complete; 1 incomplete, with every problem and its remedy; 2 no such checkpoint, or an unreadable config.
"""

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from grpo.checkpoint import adapter_files, digests
from grpo.launch import rendering
from grpo.launch.checks.model import can_format_chats
from grpo.launch.plan import size
from grpo.model import architecture, model_files
from grpo.model.model_files import CheckpointError, FileFault
from grpo.rollout import stop_tokens
from grpo.run import saved_steps
from grpo.run.run_files import RunFiles
from grpo.run.run_state import Run
from grpo.stack import command
from grpo.stack.problem import UserError

COMPLETE, INCOMPLETE, UNREADABLE = range(3)
# The verdict on the files' digests.
VERIFIED, DAMAGED, UNVERIFIED = (
    "verified",
    "damaged",
    "cannot be verified: SHA256SUMS is missing, which earlier versions did not write",
)


@dataclass
class Report:
    """What one directory holds.

    Attributes:
        facts: numbers and names; sizes in bytes.
        faults: faults of this directory; its parts list their own.
    """

    kind: str
    path: Path
    facts: dict[str, Any] = field(default_factory=dict)
    faults: list[FileFault] = field(default_factory=list)
    parts: "list[Report]" = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return not self.faults and all(part.complete for part in self.parts)

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "kind": self.kind,
            "path": str(self.path),
            "complete": self.complete,
            **self.facts,
            "problems": [asdict(fault) for fault in self.faults],
            "parts": [part.as_dict() for part in self.parts],
        }


def inspect(folder: Path) -> Report:
    """Inspect a directory.

    Raises:
        UserError: if it is none of the kinds above, or its config cannot be read.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder", "name a checkpoint")
    names = {path.name for path in folder.iterdir()}
    if RunFiles(folder).is_run():
        raise UserError(f"{folder} is a run directory", _suggest_checkpoint(folder))
    if names & {adapter_files.CONFIG, adapter_files.WEIGHTS}:
        return inspect_adapter(folder)
    if names & {"config.json", model_files.INDEX, model_files.SINGLE}:
        return inspect_model(folder)
    if step_number(folder) is not None:
        return inspect_step(folder)
    if any(step_number(folder / name) is not None for name in names):
        return inspect_steps(folder)
    empty = "no checkpoint was saved yet" if not names or RunFiles(folder.absolute().parent).is_run() else ""
    raise UserError(f"{folder} is not a base model, adapter or checkpoint", empty or "name one")


def _suggest_checkpoint(folder: Path) -> str:
    """Return what to name instead of a run's directory."""
    checkpoints = Run(folder).ckpt_path
    steps = saved_steps.saved_steps(checkpoints)
    if steps:
        return f"name {checkpoints / saved_steps.step_name(steps[-1])}, its newest step, or {checkpoints} for all"
    return f"no checkpoint was saved yet (none in {checkpoints})"


def inspect_model(folder: Path) -> Report:
    """Inspect a base model."""
    model = model_files.read(folder)
    faults = architecture.check(model) + _tokenizer_faults(folder)
    numbers = asdict(architecture.Architecture.from_config(model.config))
    facts = {
        "format": "MXFP4" if numbers.pop("mxfp4") else "bf16",
        **numbers,
        "context": model.config.get("max_position_embeddings"),
        "tensors": len(model.tensors),
        "parameters": model.parameters,
        "shards": len(model.shards),
        "file_bytes": model.file_bytes,
        "bf16_bytes": model.bf16_bytes,
        "tokenizer": (folder / "tokenizer.json").is_file(),
    }
    return Report("gpt-oss base model", folder, facts, faults)


def _tokenizer_faults(folder: Path) -> list[FileFault]:
    """Return what the preflight of a run refuses of a tokenizer, if there is one."""
    faults = [stop_tokens.fault(folder)] if (folder / stop_tokens.FILE).is_file() else []
    if can_format_chats(folder):
        try:
            rendering.render(str(folder), ["1 + 1?"], {})
        except UserError as error:
            faults.append(FileFault("tokenizer", error.problem.what, error.problem.remedy))
    return [fault for fault in faults if fault]


def inspect_adapter(folder: Path) -> Report:
    """Inspect a LoRA adapter, including its values; a damaged one only by its digests.

    Raises:
        CheckpointError: see :func:`grpo.checkpoint.adapter_files.read`.
    """
    if damage := digests.damage(folder):
        return Report("LoRA adapter", folder, {"digests": DAMAGED}, damage)
    return _inspect_whole_adapter(adapter_files.read(folder))


def _digests(*folders: Path) -> str:
    return VERIFIED if all(map(digests.is_sealed, folders)) else UNVERIFIED


def _inspect_whole_adapter(adapter: adapter_files.Adapter) -> Report:
    faults = list(adapter.faults)
    broken = adapter_files.non_finite(adapter) if adapter.whole else []
    if broken:
        what = f"holds NaN or infinity in {len(broken)} of {len(adapter.tensors)} tensors: {broken[0]}"
        remedy = "use the adapter of an earlier step, and check the rollouts of the step that broke it"
        faults.append(FileFault(adapter_files.WEIGHTS, what, remedy, tuple(broken)))
    facts = {
        "digests": _digests(adapter.folder),
        "rank": adapter.rank,
        "expert_ranks": adapter.expert_ranks,
        "alpha": adapter.alpha,
        "scale": adapter.scale,
        "targets": adapter.targets,
        "tensors": len(adapter.tensors),
        "parameters": adapter.parameters,
        "dtypes": sorted({tensor.dtype for tensor in adapter.tensors.values()}),
        "non_finite": len(broken) if adapter.whole else None,
        "base_model": adapter.config.get("base_model_name_or_path"),
    }
    return Report("LoRA adapter", adapter.folder, facts, faults)


def step_number(folder: Path) -> int | None:
    """Return N if a directory is named step_N, else None."""
    match = saved_steps.STEP_DIRECTORY.fullmatch(folder.resolve().name)
    return int(match[1]) if match else None


def inspect_step(folder: Path) -> Report:
    """Inspect a `step_N` of a run."""
    from grpo.checkpoint import state_files, trainer_state  # import torch, which takes seconds

    report = Report("step", folder, {"step": step_number(folder), "digests": None, "trainer_bytes": None})
    trainer, trained = folder / "trainer", None
    if damage := digests.step_damage(folder):
        remedy = digests.find_own_remedy(damage) or _other_step(folder)
        report.facts["digests"] = DAMAGED
        report.faults += [FileFault(name, what, remedy) for name, what in damage]
        return report
    report.facts["digests"] = _digests(*(folder / part for part in digests.PARTS))
    if trainer.is_dir():
        report.facts["trainer_bytes"] = sum(path.stat().st_size for path in trainer.rglob("*") if path.is_file())
        try:
            if not state_files.is_old(trainer / trainer_state.STATE):  # only a resume unpickles a file
                state, ranks = trainer_state.read(trainer)
                report.facts |= {"optimizer_step": state["optimizer_step"], "ranks": len(ranks)}
                trained = trainer_state.shapes(ranks[0])
        except CheckpointError as error:
            report.faults.append(FileFault("trainer", f"is incomplete ({error.problem.what})", _other_step(folder)))
    else:
        report.faults.append(FileFault("trainer", "is missing", "the adapter works, but a run cannot resume from it"))
    if not (folder / "adapter").is_dir():
        report.faults.append(FileFault("adapter", "is missing: the save was interrupted", "use another step"))
        return report
    try:
        adapter = adapter_files.read(folder / "adapter")
    except CheckpointError as error:
        report.faults.append(FileFault("adapter", error.problem.what, "use another step"))
        return report
    report.parts.append(_inspect_whole_adapter(adapter))
    differs = trained and trainer_state.difference(adapter.shapes, trained)
    if differs:
        report.faults.append(FileFault("adapter", f"does not match the trainer state: {differs}", "use another step"))
    return report


def _other_step(folder: Path) -> str:
    whole = [step for step in digests.whole_steps(folder.absolute().parent) if step != step_number(folder)]
    if not whole:
        return "restore a copy; no other step here is complete"
    return f"use {saved_steps.step_name(whole[-1])}, the newest complete step (--resume DIR --from-step {whole[-1]})"


def inspect_steps(folder: Path) -> Report:
    """Inspect every step in a run's `checkpoints`."""
    numbers = sorted(number for path in folder.iterdir() if (number := step_number(path)) is not None)
    parts = [inspect_step(folder / saved_steps.step_name(number)) for number in numbers]
    return Report("checkpoints", folder, {"steps": numbers}, parts=parts)


def describe(report: Report, indent: str = "") -> list[str]:
    """Return the report as lines for display."""
    problems = f"INCOMPLETE, {len(report.faults)} problem{'s' * (len(report.faults) != 1)}"
    state = "complete" if report.complete else problems if report.faults else "INCOMPLETE"
    lines = [f"{indent}{report.kind} {report.path}: {state}"]
    lines += [f"{indent}  {name:<11} {text}" for name, text in _LINES.get(report.kind, dict)(report.facts).items()]
    lines += [f"{indent}  {n}. {f.file} {f.what}\n{indent}     -> {f.remedy}" for n, f in enumerate(report.faults, 1)]
    return lines + [line for part in report.parts for line in describe(part, indent + "  ")]


def _model_lines(facts: dict[str, Any]) -> dict[str, str]:
    return {
        "format": f"{facts['format']} experts, {facts['parameters']:,} parameters in {facts['tensors']} tensors",
        "layers": f"{facts['layers']}, hidden {facts['hidden']}, {facts['heads']} query and "
        f"{facts['key_value_heads']} key/value heads of {facts['head_dim']}",
        "experts": f"{facts['experts']} of {facts['intermediate']}, {facts['experts_per_token']} per token",
        "vocabulary": f"{facts['vocabulary']:,}, context {facts['context'] or 'unknown'}, "
        + ("with a tokenizer" if facts["tokenizer"] else "no tokenizer.json"),
        "size": f"{size(facts['file_bytes'])} in {facts['shards']} shards, {size(facts['bf16_bytes'])} as bf16",
    }


def _adapter_lines(facts: dict[str, Any]) -> dict[str, str]:
    if facts["digests"] == DAMAGED:
        return {"digests": f"{DAMAGED}; the values were not read"}
    finite = {None: "values not read", 0: "all finite"}.get(facts["non_finite"], "NOT finite")
    targets, dtypes = ", ".join(facts["targets"]), ", ".join(facts["dtypes"])
    of_experts = "".join(f", experts {rank}" for rank in facts["expert_ranks"])
    return {
        "digests": facts["digests"],
        "rank": f"{facts['rank']}{of_experts}, alpha {facts['alpha']:g}, scale {facts['scale']:g}, on {targets}",
        "tensors": f"{facts['tensors']} with {facts['parameters']:,} parameters, {dtypes}, {finite}",
        "base model": facts["base_model"] or "not named",
    }


def _step_lines(facts: dict[str, Any]) -> dict[str, str]:
    if facts["digests"] == DAMAGED:
        return {"digests": f"{DAMAGED}; the values were not read"}
    there = facts["trainer_bytes"] is not None
    if not there:
        return {"digests": facts["digests"], "trainer": "missing, so a run cannot resume from it"}
    read = f"optimizer step {facts['optimizer_step']}, of {facts['ranks']} ranks" if "ranks" in facts else "not read"
    return {"digests": facts["digests"], "trainer": f"{size(facts['trainer_bytes'])}, {read}"}


_LINES = {"gpt-oss base model": _model_lines, "LoRA adapter": _adapter_lines, "step": _step_lines}


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = command.parser("scripts.inspect_checkpoint", __doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    try:
        report = inspect(arguments.folder)
    except (UserError, OSError) as error:
        if arguments.json:
            print(json.dumps({"kind": None, "path": str(arguments.folder), "complete": False, "error": str(error)}))
        else:
            print(f"inspect_checkpoint: {error}", file=sys.stderr)
        return UNREADABLE
    print(json.dumps(report.as_dict(), indent=2) if arguments.json else "\n".join(describe(report)))
    return COMPLETE if report.complete else INCOMPLETE


if __name__ == "__main__":
    command.run(main)
