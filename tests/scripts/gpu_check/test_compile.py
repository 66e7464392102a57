"""The Triton kernels of a run compile without a GPU, and those of the actor do not spill.

`scripts/test.sh` compiles them for sm_90 with the Triton of the stack for CPUs, `scripts/test.sh --gpu-stack` for all
cards with that of the stack for GPUs, whose vLLM alone has kernels for MXFP4 experts.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from grpo.stack.checkout import CHECKOUT
from scripts.gpu_check.compile.__main__ import compile_for, main
from scripts.gpu_check.compile.report import ACTOR, CARDS, ENGINE, SHARING, Kernel, Report

pytestmark = pytest.mark.timeout(1800)
OURS = {"_forward", "_deltas", "_backward_keys", "_backward_queries", "_unpack"}
HAS_MXFP4 = find_spec("vllm.third_party.triton_kernels") is not None
needs_mxfp4 = pytest.mark.skipif(not HAS_MXFP4, reason="vLLM's build for CPUs has no triton_kernels")
COMPILED = list(CARDS) if HAS_MXFP4 else ["sm_90"]


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    return {report.architecture: report for report in compile_for(COMPILED)}


@pytest.mark.parametrize("architecture", COMPILED)
def test_every_kernel_compiles_and_the_actors_do_not_spill(reports: dict[str, Report], architecture: str) -> None:
    """With Triton 3.7, which OpenRLHF 0.11.2 has, one of them spills on sm_100: docs/gpu.md."""
    faults = [fault for fault in reports[architecture].faults() if "sm_100" not in fault or "spills" not in fault]
    assert faults == []
    found = [kernel for kernel in reports[architecture].kernels if kernel.owner == ACTOR]
    assert {kernel.name for kernel in found} == OURS
    for kernel in found:
        # Two blocks of 128 threads fit on a multiprocessor; it has 65,536 registers.
        assert kernel.registers * 2 * 128 <= 65_536, kernel
        assert kernel.shared * 2 <= CARDS[architecture].shared_memory, kernel


@pytest.mark.parametrize("architecture", COMPILED)
def test_the_engines_attention_is_among_them(reports: dict[str, Report], architecture: str) -> None:
    parts = {kernel.part for kernel in reports[architecture].kernels if "attention" in kernel.name}
    assert {"engine: attention of gpt-oss-120b, TP=1", "engine: attention of gpt-oss-120b, TP=2"} <= parts


@needs_mxfp4
@pytest.mark.parametrize("architecture", COMPILED)
def test_the_engines_experts_are_among_them(reports: dict[str, Report], architecture: str) -> None:
    assert not reports[architecture].skipped
    names = {kernel.family for kernel in reports[architecture].kernels if kernel.owner == ENGINE}
    for what in ("matmul_ogs", "topk", "routing"):
        assert any(what in name for name in names), names


@needs_mxfp4
@pytest.mark.parametrize("architecture", COMPILED)
def test_the_layout_of_the_files_is_compiled_where_an_actor_can_share_it(reports, architecture) -> None:
    shared = {kernel.family for kernel in reports[architecture].kernels if kernel.owner == SHARING}
    assert shared == ({"_matmul_ogs"} if architecture == "sm_90" else set())


@needs_mxfp4
def test_experts_that_are_too_narrow_fail_with_the_assertion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--architecture", "sm_90", "--experts", "128,128"]) == 1
    fault = capsys.readouterr().out.splitlines()[-1]
    assert fault.startswith("fault: sm_90, engine: MXFP4 experts of 128,128: ")
    assert "static_assert(BLOCK_N % " in fault


def test_a_kernel_that_spills_is_a_fault() -> None:
    command = [sys.executable, "-m", "tests.scripts.gpu_check.spilling"]
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    ended = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    report = Report.read(json.loads(ended.stdout))
    (kernel,) = report.kernels
    assert kernel.registers == 255
    assert kernel.spilled > 100
    assert report.faults() == [f"sm_90, a test: greedy spills {kernel.spilled} bytes"]


def test_a_spill_of_vllm_and_a_skipped_part_are_no_faults() -> None:
    report = Report("sm_90", {}, [Kernel(ENGINE, "engine: a part", "theirs", 255, 8, 0)], skipped={"one": "absent"})
    assert report.faults() == []
    report.failed["another"] = "AssertionError: narrow"
    assert report.faults() == ["sm_90, another: AssertionError: narrow"]


def test_sizes_are_two_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--experts", "2880"])
    assert ended.value.code == 2
    assert "'2880' is not HIDDEN,INTERMEDIATE" in capsys.readouterr().err
