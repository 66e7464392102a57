"""The box of one GPU: engine and actor share it, in an environment of one's own with tools, which rewrites its history.

The experts have adapters, too. With evaluations and checkpoints. A run that is ended by SIGTERM saves its step;
continued from an earlier checkpoint, it has the numbers of an undisturbed one.

Only here does one process map another's base, and does a run train on what an environment has rewritten.
"""

import contextlib
import json
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from . import tool_model
from .recorded import Agreement, Sample, read_samples, shift_by_one_token
from .rounding import load_reference_model
from .runs import ROOT, going, list_processes, read_lines, read_phase, wait_for

SAVED, LAST = 2, 3  # before the SIGTERM in step 4
EVALUATED = 12
TOOL_MODEL = ROOT / ".cache" / "tool-model"
SETTINGS = {
    "MODEL": str(TOOL_MODEL / "mxfp4"), "engine_model": str(TOOL_MODEL / "bf16"),
    "TRAIN_DATA": str(TOOL_MODEL / "train.jsonl"), "prompt_max_len": "240", "turn_limit": "3",
    "rollout_batch_size": "4", "train_batch_size": "16", "loss_aggregation": "sequence_mean",
    "save_steps": str(SAVED), "eval_steps": "1", "log_samples": "64", "max_ckpt_num": "9",
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "experts"],
    "tool_seconds": "300", "rollout_seconds": "600",  # what a busy machine may take
}  # fmt: skip
# What differs between two runs of the same numbers: times, memory, disks, and what the faults themselves count.
OTHER = {
    *("time", "seconds", "tokens_per_second", "host_memory", "device_memory", "engine_memory", "disk_free"),
    *("lost_writes", "reward_seconds", "judge_seconds"),
    # A step that is made again finds the answers to its first attempt in the judge's cache.
    *("judge_calls", "judge_cached", "judge_tokens"),
}
# Of a sum it wants a box, and fails without one. Of a difference it asks again after the answer: the <|return|> that
# ended it is an <|end|> in the next prompt, which begins a sample.
INSISTENT = """
from grpo.environments import python

class Environment(python.Environment):
    async def reply(self, messages):
        if "plus" in self.prompt and "boxed" not in messages[-1]["content"]:
            raise RuntimeError("no box")
        is_asked = sum(message["role"] == "user" for message in messages) > 1
        return None if "plus" in self.prompt or is_asked else [{"role": "user", "content": "Are you sure?"}]
"""


@dataclass
class Parts:
    """A run that was ended by SIGTERM in step 4 and continued after step 2, and a copy of what it had left.

    Attributes:
        held: the bases that processes held in the last step: inodes by process.
    """

    before: Path
    after: Path
    held: dict[int, list[str]]


@pytest.fixture(scope="module")
def parts(tiny_model, tmp_path_factory) -> Parts:
    tool_model.make(tiny_model / "bf16", TOOL_MODEL)
    folder = tmp_path_factory.mktemp("runs")
    run, held_out, own = folder / "run", folder / "eval.jsonl", folder / "insistent.py"
    held_out.write_text("\n".join(map(json.dumps, tool_model.rows("eval")[:EVALUATED])))
    own.write_text(INSISTENT)
    settings = SETTINGS | {"EVAL_DATA": str(held_out), "ENVIRONMENT": str(own)}
    metrics, code = run / "metrics.jsonl", 128 + signal.SIGTERM

    def is_evaluated() -> bool:  # the last that is done in a step
        rows = metrics.read_bytes().splitlines() if metrics.exists() else []
        return any(f'"step": {LAST},'.encode() in row and b'"exact_match"' in row for row in rows)

    with going("--gpus", 1, "--steps", LAST + 1, "--run-dir", run, code=code, **settings) as ended:
        wait_for(is_evaluated, ended.launcher)
        ended.launcher.send_signal(signal.SIGTERM)
    assert "SIGTERM: saving" in ended.output and "continues after step" in ended.output
    assert list_processes(run) == {}
    shutil.copytree(run, folder / "before", ignore=shutil.ignore_patterns("*.lock"))
    shutil.rmtree(run / "checkpoints" / f"step_{LAST}")  # continue from before
    evals = read_lines(run / "eval.jsonl")  # a part restarts once it has evaluated
    (run / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evals if row["step"] < SAVED))
    with going("--gpus", 1, "--steps", LAST, "--resume", run, **settings) as resumed:
        wait_for(lambda: (read_phase(run) or ("", 0))[1] == LAST, resumed.launcher)
        held = list_held_bases(run)
    assert "starting Ray (1 stand-in for GPUs" in resumed.output
    assert f"continuing after step {SAVED}" in resumed.output
    return Parts(folder / "before", run, held)


def list_held_bases(run: Path) -> dict[int, list[str]]:
    """Return the inodes of the bases that the processes of a run map, once for each mapping."""
    found = {}
    for pid in list_processes(run):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            mappings = Path(f"/proc/{pid}/maps").read_text().splitlines()
            found[pid] = [each.split()[4] for each in mappings if "/memfd:grpo-base" in each]
    return {pid: inodes for pid, inodes in found.items() if inodes}


def find_differences(expected: Sequence[Mapping[str, Any]], actual: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return where the lines of two runs differ, digit for digit; [] if they are equal."""
    steps, wanted = [row["step"] for row in actual], [row["step"] for row in expected]
    if steps != wanted:
        return [f"steps {steps} instead of {wanted}"]
    return [
        f"step {row['step']}: {name} is {row.get(name)}, not {other.get(name)}"
        for row, other in zip(actual, expected, strict=True)
        for name in sorted(row.keys() | other.keys())
        if name.partition(".")[0] not in OTHER and row.get(name) != other.get(name)
    ]


def has_same_tensors(one: Path, other: Path) -> bool:
    """Return whether two files hold the same tensors, bit for bit; the order of their metadata is random."""
    a, b = load_file(one), load_file(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.timeout(900)
def test_engine_and_actor_agree_before_and_after_the_first_update(parts):
    gates = [*read_lines(parts.before / "parity.jsonl"), *read_lines(parts.after / "parity.jsonl")]
    assert {gate["has_adapter"] for gate in gates} == {False, True}
    assert not [problem for gate in gates for problem in gate["problems"]]


@pytest.mark.timeout(900)
def test_engine_and_actor_hold_one_copy_of_the_base(parts):
    for run in (parts.before, parts.after):
        assert "maps the engine's base" in (run / "logs" / "driver.log").read_text()
    held = parts.held.values()
    assert len(held) == 2 and all(len(inodes) == 1 for inodes in held), "one in each of core and actor"
    assert len({inode for inodes in held for inode in inodes}) == 1


@pytest.mark.timeout(900)
def test_rollouts_use_the_tool_and_train_on_every_sample(parts):
    steps = read_lines(parts.after / "metrics.jsonl")
    assert [step["step"] for step in steps] == list(range(1, LAST + 1))
    for step in steps:
        assert step["token_mismatch"] == step["dropped_values"] == step["branches_dropped"] == 0
        assert step["grad_norm"] > 0 and step["optimizer_steps"] == 2, "as many as without branches"
        assert step["turns"] > 1 and step["tool_calls"] > 0
        assert 0 <= step["reward_missing"] == step["ended_by_error"] < 0.5
        assert 0 <= step["branches"] < step["turns"]
    assert any(step["branches"] for step in steps) and any(step["reward_missing"] for step in steps)


@pytest.mark.timeout(900)
def test_samples_of_several_turns_have_the_engines_log_probs(parts):
    model = TOOL_MODEL / "bf16"
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
def test_a_run_that_is_resumed_has_the_numbers_of_an_undisturbed_one(parts):
    """Of the step that both made: an undisturbed run first, which saved it at the SIGTERM, and then the resumed one."""
    before, after = (read_lines(run / "metrics.jsonl") for run in (parts.before, parts.after))
    assert len(before) >= LAST and find_differences(before[:LAST], after) == []
    before, after = (read_lines(run / "eval.jsonl") for run in (parts.before, parts.after))
    assert [row["step"] for row in after] == list(range(LAST + 1)) and find_differences(before[: LAST + 1], after) == []
    folders = [run / "checkpoints" / f"step_{LAST}" / "adapter" for run in (parts.before, parts.after)]
    assert has_same_tensors(*(folder / "adapter_model.safetensors" for folder in folders))
