"""The box of one GPU: engine and actor share it, in an environment with tools, with evaluations and checkpoints."""

import contextlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from transformers import AutoTokenizer

from scripts.tiny_model import tools
from tests.soak.faults import find
from tests.soak.proof import find_differences, has_same_tensors

from .recorded import Agreement, Sample, read_samples, shift_by_one_token
from .rounding import load_reference_model
from .runs import ROOT, kill, list_processes, phase_of, read_lines, running, wait_for

SAVED, LAST, STEPS = 1, 2, 3
EVALUATED = 24
SETTINGS = {
    "ENVIRONMENT": "python", "ROLLOUT_BATCH_SIZE": "4", "TRAIN_BATCH_SIZE": "32", "SAVE_STEPS": str(SAVED),
    "EVAL_STEPS": str(SAVED), "LOG_SAMPLES": "64", "MAX_CHECKPOINTS": "9",
    "MICRO_TRAIN_BATCH_SIZE": "1",  # an update that lasts until the core is killed
    "TOOL_SECONDS": "300", "ROLLOUT_SECONDS": "600",  # what a busy machine may take
}  # fmt: skip


@dataclass
class Parts:
    """A run that was killed in step 3 and continued after step 1, and a copy of what the kill left.

    In step 2 of the continued part its engine is killed while it samples, and in step 3 the engine's core while the
    actor trains.

    Attributes:
        held: the bases that processes held then, before the first kill and after each step: inodes by process.
    """

    before: Path
    after: Path
    held: list[dict[int, list[str]]]


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> Parts:
    folder = tmp_path_factory.mktemp("runs")
    run, held_out = folder / "run", folder / "eval.jsonl"
    held_out.write_text("\n".join(map(json.dumps, tools.rows("python", "eval")[:EVALUATED])))
    settings = SETTINGS | {"EVAL_DATA": str(held_out)}
    metrics, box = run / "metrics.jsonl", ("--gpus", 1, "--steps", STEPS)

    def is_evaluated() -> bool:  # the last that is done in a step
        rows = metrics.read_bytes().splitlines() if metrics.exists() else []
        return any(f'"step": {LAST},'.encode() in row and b'"exact_match"' in row for row in rows)

    kill(run, is_evaluated, *box, "--run-dir", run, **settings)
    shutil.copytree(run, folder / "before", ignore=shutil.ignore_patterns("*.lock"))
    with running(*box, "--resume", run, "--from-step", SAVED, **settings) as resumed:
        wait_for(lambda: phase_of(run) == ("generate", LAST), resumed.launcher)
        engine = find_process("an engine", run)
        held = [held_bases(run)]
        engine.kill()
        wait_for(lambda: phase_of(run) == ("generate", STEPS), resumed.launcher)
        core = find_process("the core of an engine", run)
        held.append(held_bases(run))
        wait_for(lambda: phase_of(run) == ("train", STEPS), resumed.launcher)
        core.kill()
        wait_for(lambda: len(read_lines(metrics)) == STEPS, resumed.launcher)
        held.append(held_bases(run))
    assert "starting Ray (1 stand-in for GPUs" in resumed.output
    assert f"continuing after step {SAVED}" in resumed.output and "restarting" not in resumed.output
    return Parts(folder / "before", run, held)


def find_process(role: str, run: Path) -> psutil.Process:
    process = find(role, [psutil.Process(pid) for pid in list_processes(run) if psutil.pid_exists(pid)])
    assert process
    return process


def held_bases(run: Path) -> dict[int, list[str]]:
    """The inodes of the bases that the processes of a run map, once for each mapping."""
    found = {}
    for pid in list_processes(run):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            mappings = Path(f"/proc/{pid}/maps").read_text().splitlines()
            found[pid] = [each.split()[4] for each in mappings if "/memfd:grpo-base" in each]
    return {pid: inodes for pid, inodes in found.items() if inodes}


@pytest.mark.timeout(900)
def test_engine_and_actor_agree_before_and_after_the_first_update(parts):
    gates = [*read_lines(parts.before / "parity.jsonl"), *read_lines(parts.after / "parity.jsonl")]
    assert {gate["has_adapter"] for gate in gates} == {False, True}
    assert not [problem for gate in gates for problem in gate["problems"]]


@pytest.mark.timeout(900)
def test_engine_and_actor_hold_one_copy_of_the_base(parts):
    for run in (parts.before, parts.after):
        assert "maps the engine's base" in (run / "logs" / "driver.log").read_text()


@pytest.mark.timeout(900)
def test_an_engine_that_was_killed_is_replaced_with_one_copy_of_the_base(parts):
    """It loads another base than the one that died, and the actor lets go of that one, also while it trains."""
    assert [row["step"] for row in read_lines(parts.after / "logs" / "replaced.jsonl")] == [LAST, STEPS]
    assert [row["engines_replaced"] for row in read_lines(parts.after / "metrics.jsonl")][SAVED:] == [1.0, 1.0]
    for held in parts.held:
        assert len(held) == 2 and all(len(inodes) == 1 for inodes in held.values()), "one in each of core and actor"
    bases = [{inode for inodes in held.values() for inode in inodes} for held in parts.held]
    assert all(len(base) == 1 for base in bases) and len(set.union(*bases)) == len(bases)


@pytest.mark.timeout(900)
def test_rollouts_use_the_tool_and_train(parts):
    steps = read_lines(parts.after / "metrics.jsonl")
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    for step in steps:
        assert step["token_mismatch"] == step["dropped_values"] == 0 and step["grad_norm"] > 0
        assert step["turns"] > 1 and step["tool_calls"] > 0


@pytest.mark.timeout(900)
def test_samples_of_several_turns_have_the_engines_log_probs(parts):
    model = ROOT / ".cache" / "tiny-model" / "python" / "bf16"
    samples = read_samples(read_lines(parts.after / "samples" / "step_1.jsonl"), AutoTokenizer.from_pretrained(model))[
        :16
    ]
    assert any(map(has_several_turns, samples))
    agreement = Agreement.measure(samples, load_reference_model(model))
    assert agreement.holds()
    assert agreement.notices(shift_by_one_token(agreement.exact)), "the comparison proves nothing"


def has_several_turns(sample: Sample) -> bool:
    places = sample.sampled.nonzero().flatten()
    return int(places[-1] - places[0]) >= len(places)


@pytest.mark.timeout(900)
def test_a_killed_run_that_is_resumed_has_the_numbers_of_an_undisturbed_one(parts):
    """Of the steps that both made: an undisturbed run first, and then the resumed one."""
    before, after = (read_lines(run / "metrics.jsonl") for run in (parts.before, parts.after))
    assert len(before) >= LAST and find_differences(before[:LAST], after[:LAST]) == []
    before, after = (read_lines(run / "eval.jsonl") for run in (parts.before, parts.after))
    assert [row["step"] for row in after] == [0, SAVED, LAST, STEPS]
    assert find_differences(before, after[: len(before)]) == [] and before[-1]["step"] == LAST
    folders = [run / "checkpoints" / f"step_{LAST}" / "adapter" for run in (parts.before, parts.after)]
    assert has_same_tensors(*(folder / "adapter_model.safetensors" for folder in folders))
