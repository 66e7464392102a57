"""Write the table of the hooks in docs/architecture.md, from the patches, the patched OpenRLHF and grpo/hooks/.

    python -m scripts.architecture

Exit code: 0.
"""

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

from grpo import hooks
from grpo.stack import command
from grpo.stack.checkout import CHECKOUT
from patches.package import find_target, installed_version
from patches.series import Series

PAGE = CHECKOUT / "docs" / "architecture.md"
BEGIN, END = "<!-- hooks: written by python -m scripts.architecture -->\n", "<!-- end of hooks -->\n"
# In the order in which a run calls them; a step's phases repeat in every step.
PHASES = {
    "Start of the driver": (
        *("package.collect_rarely", "package.check_digest", "train_ppo_ray.add_flags", "train_ppo_ray.validate"),
        *("train_ppo_ray.hand_on_thinking_budget", "train_ppo_ray.hand_on_template_variables"),
        *("train_ppo_ray.runtime_env", "train_ppo_ray.settle_nodes"),
        *("train_ppo_ray.engine_model", "train_ppo_ray.adapter_config", "vllm_engine.bundles"),
        *("vllm_engine.WORKER", "vllm_engine.MOST_RESTARTS", "vllm_engine.end_orphans"),
        *("vllm_engine.engine_arguments", "vllm_engine.continuable", "launcher.bundles"),
        *("train_ppo_ray.actor_is_reference", "train_ppo_ray.reference_from", "train_ppo_ray.controller_place"),
        *("train_ppo_ray.engines_before_actor", "train_ppo_ray.engines_ready"),
    ),
    "Start of a rank": (
        *("launcher.free_port", "launcher.install_rendezvous", "deepspeed.install_matmul"),
        *(
            "ppo_actor.loading",
            "ppo_actor.router_logits",
            "deepspeed.offload",
            "deepspeed.tune",
            "actor.is_gpt_oss",
            "actor.load_gpt_oss",
        ),
        *("ppo_actor.allocated_rows", "deepspeed.optimizer", "deepspeed.restore_rope"),
        *("ppo_actor.load_step", "ppo_actor.recorder", "ppo_actor.PolicyLoss", "ppo_actor.needs_nccl_group"),
    ),
    "Before the first step": (
        *("prompts_dataset.render_with", "ppo_trainer.length_limits"),
        *("ppo_trainer.restore", "ppo_trainer.start_log", "ppo_trainer.evaluate_first"),
    ),
    "A step: sampling": (
        *("ppo_trainer.next_batch", "experience_maker.begin_batch"),
        *("experience_maker.samples_per_prompt", "experience_maker.seeded", "experience_maker.send"),
        *("experience_maker.loads", "experience_maker.pending", "experience_maker.goes_on", "experience_maker.wait"),
        *("vllm_engine.sampled", "vllm_engine.require_policy", "vllm_engine.has_policy", "vllm_engine.for_sample"),
        *("agent.prompt_tokens", "agent.ids_only", "agent.UNKNOWN_LOG_PROB", "agent.text_of", "agent.score_of"),
        "vllm_engine.answer",
        *("experience_maker.experience_of", "experience_maker.reward_of", "experience_maker.score_of"),
        *("experience_maker.sampled_length", "experience_maker.is_truncated", "experience_maker.length_limit"),
        *("experience_maker.scalar", "experience_maker.kept", "experience_maker.end_batch"),
        *("experience_maker.in_order", "experience_maker.pass_rate"),
    ),
    "A step: batch": (
        *("experience_maker.complete", "experience_maker.with_branches", "experience_maker.old_log_probs"),
        *("ppo_actor.routing_replayed", "actor.logits_to_keep", "actor.scoring", "actor.scores"),
        *("experience_maker.recorded_routing", "ppo_actor.adapter_off"),
        *("experience_maker.apart", "experience_maker.give_advantages", "ppo_trainer.before_training"),
        *("replay_buffer.with_branches", "replay_buffer.joined"),
    ),
    "A step: update": (
        *("ppo_actor.whole_batches", "ppo_actor.old_log_probs"),
        *("ppo_actor.kl_loss", "ppo_actor.entropy_loss", "ppo_actor.note_tokens", "ppo_actor.note_step"),
        *("ppo_actor.notes", "ppo_trainer.merge_status", "ppo_trainer.after_training"),
    ),
    "A step: sync": (
        "ppo_actor.trains_adapter",
        "ppo_actor.sync_adapter",
        "vllm_engine.load_adapter",
        "ppo_trainer.note_sync",
    ),
    "A step: log and checkpoint": (
        *("ppo_trainer.log_rollouts", "ppo_trainer.states", "ppo_trainer.lengths_after", "ppo_actor.save_step"),
        *("ppo_trainer.log_step", "ppo_trainer.evaluate", "ppo_trainer.is_finished"),
    ),
    "End of the run": ("ppo_trainer.evaluate_last", "ppo_trainer.close", "deepspeed.save_adapter"),
}


def table() -> str:
    """Return the hooks in the order of PHASES as Markdown, one table per phase.

    Raises:
        ValueError: if PHASES and the functions that upstream calls differ.
    """
    target = find_target()
    patch_of = dict(_patches(installed_version(target)))
    listed = [name for names in PHASES.values() for name in names]
    if sorted(listed) != sorted(patch_of):
        raise ValueError(f"PHASES differs from what the patches call: {sorted(set(listed) ^ set(patch_of))}")
    callers = {name: caller for module in _modules() for name, caller in _callers(target, module, patch_of)}
    rooms = {name: room for module in _modules() for name, room in _rooms(module)}
    parts = []
    for phase, names in PHASES.items():
        rows = [f"| `{name}` | {callers[name]} | `{patch_of[name][0]}` | {rooms[name]} |" for name in names]
        parts.append(f"**{phase}**\n\n| hook | called in | patch | room |\n|---|---|---|---|\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _modules() -> list[str]:
    return sorted(path.stem for path in Path(hooks.__path__[0]).glob("*.py") if path.stem != "__init__")


def _patches(version: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each hook with the patch that calls it and the upstream file, the first patch last."""
    calls = []
    for patch in Series.load(version).files():
        file = ""
        for line in patch.read_text().splitlines():
            if line.startswith("+++ b/"):
                file = line.removeprefix("+++ b/")
            elif line.startswith("+"):
                module = "package" if file.endswith("__init__.py") else Path(file).stem
                where = (patch.stem, file)
                calls += [(f"{module}.{name}", where) for name in re.findall(r"\bhooks\.(\w+)", line)]
    return reversed(calls)


def _callers(target: Path, module: str, patch_of: dict[str, tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield each hook of a module with the upstream functions that call it."""
    file = next(file for name, (_, file) in patch_of.items() if name.startswith(f"{module}."))
    tree = ast.parse((target.parent / file).read_text(encoding="utf-8"))
    callers: dict[str, list[str]] = {}

    def visit(node: ast.AST, inside: str) -> None:
        if isinstance(node, ast.ClassDef):
            inside = f"{node.name}."
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = f"{inside}{node.name}" if not inside or inside.endswith(".") else inside
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "hooks":
            callers.setdefault(f"{module}.{node.attr}", []).append(inside.rstrip("."))
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(tree, "")
    short = file.removeprefix("openrlhf/")
    for name, functions in callers.items():
        where = ", ".join(f"`{function}`" for function in dict.fromkeys(functions) if function)
        yield name, f"{short}: {where}" if where else short


def _rooms(module: str) -> Iterator[tuple[str, str]]:
    """Yield each hook of a module with the files of `grpo/` that do its work: its own file if it calls no other."""
    tree = ast.parse((Path(hooks.__path__[0]) / f"{module}.py").read_text(encoding="utf-8"))
    files = dict(_imported(tree))
    attributes = dict(_attributes(tree, files))
    for name, file in files.items():
        yield f"{module}.{name}", file  # re-exported by the module unchanged
    for node in tree.body:
        own = _link(Path("grpo", "hooks", f"{module}.py"))
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield f"{module}.{node.targets[0].id}", _named_by(node.value) or own
        elif isinstance(node, ast.ClassDef):
            bases = [files.get(ast.unparse(part)) for base in node.bases for part in ast.walk(base)]
            yield f"{module}.{node.name}", ", ".join(filter(None, bases)) or own
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            known = files | dict(_imported(node))
            for argument in node.args.args:
                if isinstance(argument.annotation, ast.Name):
                    declared = attributes.get(argument.annotation.id, {})
                    known |= {f"{argument.arg}.{name}": file for name, file in declared.items()}
            used = [known.get(ast.unparse(part)) for statement in node.body for part in ast.walk(statement)]
            yield f"{module}.{node.name}", ", ".join(dict.fromkeys(filter(None, used))) or own


def _attributes(tree: ast.Module, files: dict[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each class of a module with the attributes that it declares with a type of ours, and that type's file."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            declared = [line for line in node.body if isinstance(line, ast.AnnAssign)]
            types = {ast.unparse(line.target): ast.unparse(line.annotation).partition(".")[0] for line in declared}
            yield node.name, {name: files[type_] for name, type_ in types.items() if type_ in files}


def _named_by(value: ast.expr) -> str:
    """Return the file of a class that a constant names by its dotted path; "" for another constant."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.startswith("grpo."):
        return _link(Path(*value.value.split(".")[:-1]).with_suffix(".py"))
    return ""


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("grpo."):
            for alias in node.names:
                path = Path(node.module.replace(".", "/"))
                file = path / f"{alias.name}.py" if (CHECKOUT / path).is_dir() else path.with_suffix(".py")
                yield alias.name, _link(file)


def _link(file: Path) -> str:
    return f"[{Path(*file.parts[1:])}](../{file})"


def page() -> str:
    """Return docs/architecture.md with the table brought up to date."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return head + BEGIN + "\n" + table() + "\n" + END + rest.partition(END)[2]


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    assert __doc__
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m scripts.architecture",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(argv)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(CHECKOUT)}")
    return 0


if __name__ == "__main__":
    command.run(main)
