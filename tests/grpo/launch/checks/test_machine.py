"""Missing resources of the machine are reported with the remedy."""

import os
import socket
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from grpo.launch import run_dir
from grpo.launch.checks.machine import check_gpus, warn_of_gpus
from grpo.launch.plan import make_plan
from grpo.run.run_files import RunFiles
from grpo.stack import machine
from grpo.stack.checkout import CHECKOUT
from grpo.stack.machine import Gpu
from grpo.stack.problem import UserError
from tests.grpo.launch.boxes import LARGE

GB = 10**9
H100 = Gpu("H100", 80 * GB, 0, "9.0")


@pytest.mark.parametrize(
    ("gpus", "changes", "names"),
    [
        ([H100] * 7, {}, "--actor_num_gpus_per_node: --gpus 4 chooses them"),
        ([H100] * 8, {"actor_num_gpus_per_node": 7}, "engines (4) and actor (7) need 11 GPUs of 8"),
        ([H100] * 7 + [Gpu("H100", 80 * GB, 30 * GB, "9.0", index=7)], {}, "GPU 7"),
        ([Gpu("tiny", 100, 0, "9.0")] * 8, {"offload": None}, "of this machine)"),
        ([H100] * 8, {}, None),
        ([H100] * 4, {"vllm_num_engines": 1, "actor_num_gpus_per_node": 2}, None),
    ],
)
def test_gpus(setting, monkeypatch: pytest.MonkeyPatch, gpus: list[Gpu], changes: dict, names: str | None) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.setattr(machine, "gpus", lambda: gpus)
    problems = setting.find_problems(**changes)
    assert problems == [] if names is None else names in problems[0]
    assert not any("rollout_batch_size" in problem for problem in problems), "it depends on the number of ranks"


@pytest.mark.parametrize(
    ("capability", "targets", "names"),
    [
        ("7.5", ["q_proj"], "use GPUs of 8.0 (A100) or 8.9 (L40S, RTX 4090) or 9.0 (H100, H200) or 10.0 (B200)"),
        ("8.0", ["q_proj", "experts"], "remove experts from --target_modules, or use GPUs of 9.0 (H100, H200)"),
        ("12.0", ["experts"], "remove experts from --target_modules"),
        ("8.0", ["q_proj"], None),
        ("9.0", ["experts"], None),
        ("10.0", ["experts"], None),
    ],
)
def test_a_gpu_model_without_kernels_is_refused_and_those_with_them_are_named(
    setting, monkeypatch, capability, targets, names
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.setattr(machine, "gpus", lambda: [Gpu("T", 80 * GB, 0, capability)] * 8)
    config = setting.make_config(pretrain=LARGE, target_modules=targets)
    problems = [str(problem) for problem in check_gpus(config, make_plan(config))]
    assert [names in problem for problem in problems] == [True] * (names is not None)


def test_the_page_lists_the_gpu_models_that_refusals_name() -> None:
    rows = [line for line in (CHECKOUT / "docs" / "boxes.md").read_text().splitlines() if line.startswith("| ")]
    for capability, models in machine.MODELS.items():
        for model in models.split(", "):
            assert any(model in row.split("|")[1] and f"({capability})" in row.split("|")[1] for row in rows), model


@pytest.mark.parametrize(
    ("installed", "driver", "least"),
    [
        ("nvidia-cuda-runtime-cu12", "520.61.05", "525"),
        ("nvidia-cuda-runtime-cu12", "525.60.13", None),
        ("nvidia-cuda-runtime", "570.86.15", "580"),
        ("nvidia-cuda-runtime", "580.65.06", None),
    ],
)
def test_a_driver_that_the_stack_cannot_use_is_refused(
    setting, monkeypatch, installed: str, driver: str, least
) -> None:
    def find_version(package: str) -> str:
        if package == installed:
            return "1"
        raise PackageNotFoundError(package)

    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.setattr(machine, "gpus", lambda: [H100] * 8)
    monkeypatch.setattr(machine, "find_driver", lambda: driver)
    monkeypatch.setattr("grpo.launch.checks.machine.version", find_version)
    assert [least in problem for problem in setting.find_problems()] == [True] * (least is not None)


@pytest.mark.parametrize(
    ("what", "free", "names"),
    [
        ("memory_available", 2 * GB, "engines or ranks"),
        ("shared_memory_free", 64 * 2**20, "--shm-size"),
        ("disk_free", 10, "--ckpt_path"),
    ],
)
def test_too_little_memory_or_disk_is_refused(setting, monkeypatch, what: str, free: int, names: str) -> None:
    monkeypatch.setattr(machine, what, lambda *_: free)
    [problem] = setting.find_problems()
    assert names in problem


def test_folders_with_results_of_another_run_are_refused(setting, tmp_path: Path) -> None:
    setting.run_dir.mkdir()
    assert setting.find_problems() == [], "an empty one is fine"
    (setting.run_dir / "config.json").touch()
    (tmp_path / "c" / "step_3").mkdir(parents=True)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "metrics.jsonl").touch()
    found = setting.find_problems(ckpt_path=tmp_path / "c", metrics_dir=tmp_path / "m")
    assert [problem.split()[0] for problem in found] == ["--run-dir", "--ckpt_path", "--metrics_dir"]
    (tmp_path / "file").touch()  # and those that nobody can write, not even root
    found = setting.find_problems(ckpt_path=tmp_path / "file" / "x", metrics_dir="/proc/metrics")
    assert [problem.split(":")[0] for problem in found[1:]] == ["--ckpt_path", "--metrics_dir"]


@pytest.mark.parametrize(
    ("model", "count", "gpus", "remedy"),
    [
        ("openai/gpt-oss-120b", None, [], "--tiny"),
        ("openai/gpt-oss-20b", None, [H100] * 8, "setup.sh --gpu"),
        ("/copy/of/it", 234 * GB, [], "--tiny"),
        ("/of/a/test", 10**7, [], None),
    ],
)
def test_large_model_is_rejected_on_the_cpu_stack(setting, monkeypatch, model, count, gpus, remedy) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: gpus)
    config = setting.make_config(pretrain=model)
    problems = [str(problem) for problem in check_gpus(config, replace(make_plan(config), model_bf16_bytes=count))]
    assert len(problems) == (remedy is not None)
    assert all(f"MODEL {model}" in problem and remedy in problem.split("->")[1] for problem in problems)


def test_too_few_gpus_are_named_before_a_stack_for_them_is_installed(setting, monkeypatch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: [H100] * 8)
    first, second = setting.find_problems(pretrain="openai/gpt-oss-120b", actor_num_gpus_per_node=7)[:2]
    assert "need 11 GPUs of 8" in first and "setup.sh --gpu" in second


def test_a_cluster_to_join_has_to_answer(setting, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{listener.getsockname()[1]}")
        assert setting.find_problems() == setting.find_problems(colocate_all_models=True, vllm_num_engines=2) == []
    for address in (os.environ["RAY_ADDRESS"], "auto"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        [problem] = setting.find_problems()
        assert f"RAY_ADDRESS {address}" in problem and "unset RAY_ADDRESS" in problem


def test_the_run_directory_of_another_user_is_refused(setting, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RunFiles(setting.run_dir)
    setting.run_dir.mkdir()
    files.config.write_text("{}")
    if os.geteuid() == 0:
        os.chown(setting.run_dir, 1001, -1)
    else:
        other = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: other)
    for use in (lambda: run_dir.find_run(str(setting.run_dir)), files.hold):
        with pytest.raises(UserError, match=r"belongs to another user .*a copy of the run"):
            use()
    assert not files.lock.exists()


@pytest.mark.parametrize(
    ("capabilities", "named"),
    [((), []), (("9.0", "10.0"), []), (("8.0", "9.0", "8.0"), ["8.0"]), (("12.0", "8.9"), ["12.0", "8.9"])],
)
def test_other_generations_are_named_once_each_on_the_gpu_stack(monkeypatch, capabilities, named) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: [Gpu(f"GPU {kind}", 1, 0, kind) for kind in capabilities])
    assert warn_of_gpus() == []
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    lines = warn_of_gpus()
    assert len(lines) == len(named) and all(kind in line for line, kind in zip(lines, named, strict=True))
