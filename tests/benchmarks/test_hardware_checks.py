"""Checks of hardware on a CPU, at small sizes: what is right passes, and what is broken is noticed.

The kernels that need Triton run in tests/gpu, on a CPU through tests/grpo/model/test_attention.py; checks with engines
in tests/stack/test_gpu_check.py.
"""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import actor, engine_speed, kernels, layer, machine, parity, ranks, whole_loop, zero3
from benchmarks.checks import Skipped
from benchmarks.random_model import FULL, shrink
from grpo.flags.parser import Asked, fill
from grpo.launch import cost
from grpo.lora import adapter
from grpo.model import mxfp4
from grpo.model.released import RELEASED
from grpo.stack.problem import UserError
from grpo.train import log_probs
from tests import forked

SMALL = shrink(
    512, layers=2, hidden=128, heads=4, key_value_heads=2, head_dim=32, experts=8, intermediate=128, attention_bias=True
)


def test_experts_pass_and_a_wrong_scale_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = kernels.experts(0, count=8, hidden=64, tokens=50)
    assert 0 < max(passed.numbers["errors"].values()) < 0.01
    right = mxfp4.unpack_weights
    monkeypatch.setattr(mxfp4, "unpack_weights", lambda *packed: right(*packed) * 1.05)
    with pytest.raises(UserError, match="other results"):
        kernels.experts(0, count=8, hidden=64, tokens=50)


@pytest.mark.parametrize("factor", [0.9, float("nan")])
def test_log_probs_pass_and_another_temperature_is_noticed(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    assert max(kernels.log_probs(0, 60, 2000).numbers["errors"].values()) < 0.01
    right = log_probs.token_scores
    monkeypatch.setattr(log_probs, "token_scores", lambda *given: right(*given, temperature=factor))
    with pytest.raises(UserError, match="differs from float64"):
        kernels.log_probs(0, 60, 2000)


def test_a_checksum_passes_and_a_lost_row_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.checksum(0).numbers["tensors"] == 8
    monkeypatch.setattr(adapter.Checksums, "of", lambda flat, specs: adapter.Checksums(8, 1, 2))
    with pytest.raises(UserError, match="checksum of"):
        kernels.checksum(0)


PROGRAM = """
import json, sys
from pathlib import Path
from benchmarks import {module}
from benchmarks.random_model import shrink
passed = {module}.{call}
Path(sys.argv[1]).write_text(json.dumps([passed.line, passed.numbers]))
"""


def run_program(folder: Path, module: str, call: str) -> tuple[str, dict]:
    """Run a check in a process of its own: it leaves a group of ranks."""
    program, result = folder / "program.py", folder / "result.json"
    program.write_text(PROGRAM.format(module=module, call=call))
    done = forked.run([sys.executable, str(program), str(result)], 250)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(result.read_text())


def test_an_actor_is_trained_at_two_lengths(tmp_path: Path) -> None:
    small = "shrink(512, layers=2, hidden=128, heads=4, key_value_heads=2, head_dim=32, experts=8, intermediate=128)"
    line, numbers = run_program(tmp_path, "actor", f'measure_lengths(0, "tiny", {small}, (64, 96))')
    assert numbers["tokens"] == [64, 96] and min(numbers["train_s"]) > 0 < min(numbers["old_s"])
    assert numbers["peak_gb"][0] < numbers["peak_gb"][1] < 1
    assert line.startswith("tiny: 64 tokens: log-probs ")


@pytest.mark.parametrize("needed", [engine_speed.compute_needed, actor.compute_shared])
def test_a_gpu_gets_the_largest_model_that_it_holds(monkeypatch: pytest.MonkeyPatch, needed) -> None:
    large, small = (name.rpartition("/")[2] for name in RELEASED)
    for memory, model in {84e9: large, 80e9: large, 64e9: small, 25e9: small}.items():  # H100, A100, cards of others
        monkeypatch.setattr(actor, "memory_of_gpu", lambda memory=memory: memory)
        assert actor.choose_model(needed) == (model, RELEASED[f"openai/{model}"])
    monkeypatch.setattr(actor, "memory_of_gpu", lambda: 12e9)
    with pytest.raises(Skipped, match=r"gpt-oss-20b needs \d\d GB here; the GPU has 12 GB"):
        actor.choose_model(needed)


def test_the_plan_is_that_of_the_docs() -> None:
    """docs/boxes.md: `--gpus 2`, whose table adds 1 GB and 5% of the GPU."""
    for tokens, documented in ((4096, 74.8), (16_384, 79.6)):
        assert actor.plan_bytes(FULL, tokens) / 1e9 + 1 + 0.05 * 85.9 == pytest.approx(documented, abs=0.06)


def test_a_layer_is_timed_and_what_does_not_repeat_itself_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = layer.check(0, (64, 128), SMALL).numbers
    assert [len(numbers[name]) for name in ("forward_s", "train_s", "scores_s", "peak_gb")] == [2] * 4
    assert min(numbers["train_s"]) > 0 and len(cost.fit_update(numbers)) == 2
    right = layer.experts.activate
    monkeypatch.setattr(layer.experts, "activate", lambda *given: right(*given) * torch.rand(()))
    with pytest.raises(UserError, match="differs when it is repeated"):
        layer.check(0, (32, 64), SMALL)


def test_zero3_resumes_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "start_process", forked.Program)
    passed = zero3.check(0, experts=4, intermediate=64)
    numbers = passed.numbers
    assert numbers["ranks"] == 2 and numbers["losses_apart"] < 1e-3
    assert numbers["gathered"]["uint8"] == 2 * 4 and numbers["gathered"]["bfloat16"] > 10


def test_a_parameter_with_other_bytes_than_the_files_is_noticed(tmp_path: Path) -> None:
    from benchmarks.random_model import write_model
    from grpo.model import loading

    write_model(tmp_path, shrink(layers=1, experts=4, intermediate=64))
    model = parity.add_adapter(loading.load_gpt_oss(tmp_path, "eager"), 4, 0.1)
    assert zero3.compare_gathered(model, tmp_path)["uint8"] == 4
    model.base_model.model.model.layers[0].mlp.experts.down_proj_blocks.data[3, 5, 1, 7] ^= 1
    with pytest.raises(UserError, match=r"model\.layers\.0\.mlp\.experts\.down_proj_blocks"):
        zero3.compare_gathered(model, tmp_path)


def test_the_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = machine.all_reduce(0, megabytes=2).numbers
    assert numbers["ranks"] == 2 and numbers["all_reduce_gb_per_s"] > 0 < numbers["all_gather_gb_per_s"]
    assert machine.host_copies(0, 4).numbers["to_device_gb_per_s"] > 0
    assert machine.pin_memory(0, 0.125).numbers["available_gb"] > 0.25
    with pytest.raises(UserError, match="GB of host memory are available"):
        machine.pin_memory(0, 1e6)
    assert machine.toolkit(0).numbers["compiler"]
    monkeypatch.setattr(machine.sysconfig, "get_paths", lambda: {"include": "/nowhere"})
    with pytest.raises(UserError, match=r"Python\.h"):
        machine.toolkit(0)


def test_engines_and_actors_are_judged() -> None:
    from grpo.metrics.parity import Rollout

    def make(difference: float, without: float) -> list[Rollout]:
        torch.manual_seed(0)
        scored = -3 * torch.rand(12, 40)
        parts = zip(scored, difference * torch.randn(scored.shape), strict=True)
        positions = torch.arange(40)
        return [
            Rollout(0, 0, prompt, positions, one + of, one, one + without * torch.randn(40))
            for prompt, (one, of) in enumerate(parts)
        ]

    assert parity.judge("2 layers", make(0.01, 0.5)).numbers["difference_nat"] < 0.02
    for numbers, said in (((0.2, 0.5), "mean difference"), ((0.01, 0.01), "nothing")):
        with pytest.raises(UserError, match=said):
            parity.judge("2 layers", make(*numbers))


def write_run(run_dir: Path, steps: int) -> None:
    """Write what a run of so many steps leaves."""
    compared = [n for n in (1, 2, whole_loop.STEPS + 1) if n <= steps]
    rows = [{"step": n, "has_adapter": n > 1, "problems": [], "rows": [{"mean": {"value": n / 1e3}}]} for n in compared]
    seconds = {"generate": 1.0, "total": 2.0}
    metrics = [{"step": n + 1, "time": 1e12, "reward": n / 10, "seconds": seconds} for n in range(steps)]
    evaluations = [{"step": n, "exact_match": 0.5, "n": 8} for n in (0, 10)]
    run_dir.mkdir(parents=True)
    for name, written in (("parity", rows), ("metrics", metrics), ("eval", evaluations)):
        (run_dir / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written))
    (run_dir / "checkpoints" / "step_10" / "adapter").mkdir(parents=True)
    (run_dir / "config.json").write_text(json.dumps({"flags": {"engine_model": "/models/mxfp4"}}))


@pytest.mark.parametrize("how", ["whole", "first fails", "resume fails", "short"])
def test_a_loop_is_resumed_and_kept_if_it_fails(monkeypatch, tmp_path: Path, how: str) -> None:
    monkeypatch.setattr(whole_loop.tempfile, "mkdtemp", lambda **_: str(tmp_path / "made"))
    calls = []

    def run(command: list[str], **rest: object) -> SimpleNamespace:
        asked = Asked({})
        fill(asked, command[1:], lambda run: Asked({}, resume=run))
        calls.append((asked.tiny, asked.resume, asked.values["max_steps"], asked.values.get("enforce_eager")))
        folder = asked.run_dir or asked.resume
        shutil.rmtree(folder, ignore_errors=True)
        write_run(Path(folder), asked.values["max_steps"])
        return SimpleNamespace(returncode=int(how == ("first fails" if len(calls) == 1 else "resume fails")))

    monkeypatch.setattr(whole_loop.subprocess, "run", run)
    if how == "short":
        assert whole_loop.short(1).line.startswith("3 steps, engine in mxfp4")
        assert calls == [(True, None, 3, True)]
    elif how.endswith("fails"):
        with pytest.raises(UserError, match="ended with 1"):
            whole_loop.graphs(1)
    else:
        assert "10 steps, and 3 after a resume, engine in mxfp4: reward 0.000 to 1.200" in whole_loop.graphs(1).line
        run_dir = str(tmp_path / "made" / "tiny")
        assert calls == [(True, None, 10, False), (False, run_dir, 13, None)]
    assert (tmp_path / "made").exists() is how.endswith("fails")
