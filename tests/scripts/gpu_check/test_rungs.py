"""Rungs on a CPU, at small sizes: what is right passes, and what is broken is noticed.

The kernels that need Triton run in tests/gpu, on a CPU through tests/grpo/model/test_kernels.py.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.parts import ranks
from grpo.lora import adapter
from grpo.model import mxfp4
from grpo.stack.problem import UserError
from grpo.update import log_probs
from scripts.gpu_check import kernels, layer, machine, rung, trainer
from tests import forked

SMALL = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_local_experts": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def test_experts_pass_and_a_wrong_scale_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = kernels.experts(0, count=8, hidden=64, tokens=50)
    assert 0 < max(passed.numbers["errors"].values()) < 0.01
    right = mxfp4.unpack_weights
    monkeypatch.setattr(mxfp4, "unpack_weights", lambda *packed: right(*packed) * 1.05)
    with pytest.raises(UserError, match="other results"):
        kernels.experts(0, count=8, hidden=64, tokens=50)


def test_log_probs_pass_and_another_temperature_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(kernels.log_probs(0, 60, 2000).numbers["errors"].values()) < 0.01
    right = log_probs.token_scores
    monkeypatch.setattr(log_probs, "token_scores", lambda *given: right(*given, temperature=0.9))
    with pytest.raises(UserError, match="differs from float64"):
        kernels.log_probs(0, 60, 2000)


ALONE = """
from importlib.machinery import PathFinder

ABSENT = {"vllm", "ray", "deepspeed", "peft", "openrlhf", "datasets", "pyarrow", "rich", "jinja2", "httpx2"}
real = PathFinder.find_spec
PathFinder.find_spec = staticmethod(lambda name, *rest: None if name.partition(".")[0] in ABSENT else real(name, *rest))
from scripts.gpu_check import __main__, actor, collective_worker, engine, engine_speed, full_size, kernels, layer
from scripts.gpu_check import machine, side_path, trainer, whole_loop, width
kernels.experts(0, count=8, hidden=64, tokens=20)
kernels.log_probs(0, 20, 500)
kernels.receipt(0)
layer.make_config()
print("done")
"""


def test_pytorch_transformers_and_triton_are_enough_for_the_kernels() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=110)
    assert done.stdout == "done\n", done.stderr


def test_a_value_that_is_not_a_number_is_no_rounding() -> None:
    with pytest.raises(UserError, match="d key differs from float64 by nan"):
        kernels.judge_errors("attention", {"result": 0.001, "d key": float("nan")})


def test_a_receipt_passes_and_a_lost_row_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.receipt(0).numbers["tensors"] == 24
    right = adapter.row_sums
    monkeypatch.setattr(adapter, "row_sums", lambda matrix: right(matrix).roll(1))
    with pytest.raises(UserError, match="receipt of"):
        monkeypatch.setattr(adapter.Receipt, "of", lambda flat, specs: adapter.Receipt(24, 1, 2))
        kernels.receipt(0)


SIDE_PATH = """
import json, sys
from pathlib import Path
from scripts.gpu_check import side_path
Path(sys.argv[1]).write_text(json.dumps(side_path.check(0).numbers["errors"]))
"""


@pytest.mark.timeout(300)
def test_the_side_path_equals_peft_in_halves(tmp_path: Path) -> None:
    """In a process of its own: vLLM's classes are changed by the import."""
    program, result = tmp_path / "program.py", tmp_path / "result.json"
    program.write_text(SIDE_PATH)
    done = forked.run([sys.executable, str(program), str(result)], 250)
    assert done.returncode == 0, done.stderr[-3000:]
    errors = json.loads(result.read_text())
    assert {"o in 2 parts", "qkv in 2 parts", "qkv in PEFT"} < errors.keys()
    assert 0 < max(errors.values()) < 0.01


def test_a_layer_is_timed_at_two_lengths() -> None:
    passed = layer.check(0, (64, 128), 512, SMALL)
    assert "64 tokens" in passed.line and "s to train on 16 rollouts of 64" in passed.line
    numbers = passed.numbers
    for name in ("forward_s", "train_s", "scores_s", "peak_gb"):
        assert len(numbers[name]) == 2
    assert min(numbers["train_s"]) > 0 and numbers["launches"] > 100


def test_a_layer_that_does_not_repeat_itself_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = layer.experts.activate
    monkeypatch.setattr(layer.experts, "activate", lambda *given: right(*given) * torch.rand(()))
    with pytest.raises(UserError, match="differs when it is repeated"):
        layer.check(0, (32, 64), 512, SMALL)


def test_the_layer_of_the_ladder_has_the_sizes_of_the_120b() -> None:
    config = layer.make_config()
    with torch.device("meta"):
        built = layer.GptOssDecoderLayer(config, 1)
        built.mlp = layer.Routed(config)
    size = sum(p.numel() * (1 if p.dtype == torch.uint8 else 2) for p in built.parameters())
    assert size / 1e9 == pytest.approx(1.69, abs=0.1)  # docs/gpu.md: the packed weights of a layer


@pytest.mark.timeout(400)
def test_zero3_resumes_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "start_process", forked.Program)
    passed = trainer.check(0, experts=4, intermediate=64)
    numbers = passed.numbers
    assert numbers["ranks"] == 2 and numbers["losses_apart"] < 1e-3
    # Two trainers of two ranks: a forward pass per step, four experts' tensors a layer that are packed.
    packed, passes = 2 * 4, 2 * (4 + 2)
    assert numbers["gathered"]["uint8"] == packed * passes
    assert numbers["gathered"]["bfloat16"] > 10 * passes
    assert "2 ranks gathered " in passed.line and "96 of uint8" in passed.line


def make_reports(**changes) -> list[dict]:
    right = {"right": {"uint8": 4, "bfloat16": 9}, "wrong": []}
    return [right, right, right, right | changes]


def test_a_parameter_that_was_gathered_wrong_fails_the_rung() -> None:
    assert trainer.count_gathered(make_reports()) == {"uint8": 16, "bfloat16": 36}
    with pytest.raises(UserError, match=r"rank 1 computed with another lm_head\.weight and 1 more than"):
        trainer.count_gathered(make_reports(wrong=["lm_head.weight", "model.norm.weight"]))
    with pytest.raises(UserError, match="parameters of bfloat16 were compared"):
        trainer.count_gathered([{"right": {"bfloat16": 9}, "wrong": []}] * 2)


def test_one_rank_says_that_it_gathered_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    report = make_reports()[0] | {"losses": [1.0], "step_s": 1.0, "peak_gb": 2.0, "saved": {}, "draws": [1]}
    monkeypatch.setattr(trainer, "run_ranks", lambda *_, **__: [report])
    monkeypatch.setattr(trainer, "write_random_model", lambda *_, **__: None)
    passed = trainer.check(1)
    assert passed.line.startswith("1 rank: nothing was gathered;") and passed.numbers["gathered"] == {}


def test_a_module_with_other_bytes_than_the_files_is_noticed(tmp_path: Path) -> None:
    from benchmarks.parts.random_model import write_random_model
    from grpo.model import loading
    from scripts.gpu_check.scoring import add_adapter
    from scripts.gpu_check.trainer_worker import Gathered

    write_random_model(tmp_path / "model", layers=1, experts=4, intermediate=64)
    model = add_adapter(loading.load_gpt_oss(tmp_path / "model", "eager"), 4, 0.1)
    gathered, ids = Gathered(model, tmp_path / "model"), torch.arange(8)[None]
    model(ids)
    assert not gathered.wrong and gathered.right["uint8"] >= 4
    experts = model.base_model.model.model.layers[0].mlp.experts
    experts.down_proj_blocks.data[3, 5, 1, 7] ^= 1
    model(ids)
    assert gathered.wrong == {"model.layers.0.mlp.experts.down_proj_blocks"}


@pytest.mark.parametrize("part", ["draws", "master"])
def test_a_resume_with_other_states_is_noticed(part: str) -> None:
    first = [{"draws": [1, 2], "saved": {"master": "a", "schedule": [2]}}]
    again = json.loads(json.dumps(first))
    trainer.compare(first, again)
    if part == "draws":
        again[0]["draws"] = [1, 3]
    else:
        again[0]["saved"]["master"] = "b"
    with pytest.raises(UserError, match=f"rank 0: {part} differs after a resume"):
        trainer.compare(first, again)


@pytest.mark.timeout(200)
def test_ranks_sum_and_gather() -> None:
    numbers = machine.all_reduce(0, megabytes=2).numbers
    assert numbers["ranks"] == 2 and numbers["all_reduce_gb_per_s"] > 0 < numbers["all_gather_gb_per_s"]


MATRIX = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \t{link}\tSYS\t0-23\t0
GPU1\t{link}\t X \tSYS\t24-47\t1
NIC0\tSYS\tSYS\t X
"""


@pytest.mark.parametrize(("link", "name"), [("NV18", "NVLink"), ("PHB", "PCIe"), ("SYS", "PCIe"), ("??", "unknown")])
def test_links_are_read_from_the_matrix(link: str, name: str) -> None:
    assert machine.parse_links(MATRIX.format(link=link), 2) == name


def test_copies_and_memory_are_measured() -> None:
    assert machine.host_copies(0, 4).numbers["to_device_gb_per_s"] > 0
    assert machine.pin_memory(0, 0.125).numbers["available_gb"] > 0.25
    with pytest.raises(UserError, match="GB of host memory are available"):
        machine.pin_memory(0, 1e6)


def test_gpus_are_listed_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [SimpleNamespace(index=number, bus=str(node)) for number, node in enumerate((0, 0, 1))]
    monkeypatch.setattr("grpo.stack.machine.gpus", lambda: gpus)
    monkeypatch.setattr("grpo.stack.numa.find_node", lambda gpu: int(gpu.bus))
    own = os.sched_getaffinity(0)
    monkeypatch.setattr("grpo.stack.numa.list_cores", lambda node: own)
    passed = machine.numa(3)
    assert passed.numbers["gpus_of_nodes"] == {"0": ["0", "1"], "1": ["2"]}
    assert f"GPUs 0, 1 beside node 0 ({len(own)} usable cores); GPUs 2 beside node 1" in passed.line
    monkeypatch.setattr("grpo.stack.numa.list_cores", lambda node: own if node == 0 else set())
    with pytest.raises(UserError, match="no core of NUMA node 1"):
        machine.numa(3)


def test_without_nvidia_smi_the_nodes_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.stack.machine.gpus", list)
    with pytest.raises(rung.Skipped):
        machine.numa(1)


def test_a_compiler_without_headers_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(UserError, match=r"Python\.h"):
        machine.toolkit(0)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(UserError, match="no C compiler"):
        machine.toolkit(0)
