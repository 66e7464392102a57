"""Missing resources of the machine are reported with the remedy."""

import os
import resource
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from grpo.launch import run_dir
from grpo.launch.checks.machine import check_gpus
from grpo.launch.plan import make_plan
from grpo.run.run_files import RunFiles
from grpo.stack import machine
from grpo.stack.machine import Gpu
from grpo.stack.problem import UserError

GB = 10**9


H100 = Gpu("H100", 80 * GB, 0, "9.0")


@pytest.mark.parametrize(
    ("gpus", "changes", "message"),
    [
        ([H100] * 7, {}, "8 GPUs are needed (4 for engines, 4 for the actor), 7 are visible"),
        ([H100] * 7 + [Gpu("H100", 80 * GB, 30 * GB, "9.0", index=7)], {}, "30.0 GB of GPU 7 are in use"),
        ([Gpu("tiny", 100, 0, "9.0")] * 8, {"offload": None}, "of this machine)"),
        ([H100] * 8, {}, None),
        ([H100] * 4, {"vllm_num_engines": 1, "actor_num_gpus_per_node": 2}, None),
    ],
)
def test_gpus(setting, monkeypatch: pytest.MonkeyPatch, gpus: list[Gpu], changes: dict, message: str | None) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.setattr(machine, "gpus", lambda: gpus)
    problems = setting.find_problems(**changes)
    assert problems == [] if message is None else message in problems[0]


def test_too_little_memory_is_refused(setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_available", lambda: 2 * GB)
    monkeypatch.setattr(machine, "shared_memory_free", lambda: 64 * 2**20)
    memory, shared = setting.find_problems()
    assert "2.0 GB of memory is free, but the run needs about" in memory
    assert "/dev/shm has 67.1 MB free" in shared and "--shm-size" in shared


def test_too_little_disk_is_refused(setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "disk_free", lambda path: 10)
    [problem] = setting.find_problems()
    assert "CKPT_DIR" in problem


def test_a_used_run_directory_is_refused(setting) -> None:
    setting.run_dir.mkdir()
    assert setting.find_problems() == [], "an empty one is fine"
    (setting.run_dir / "metrics.jsonl").touch()
    [problem] = setting.find_problems()
    assert "exists and is not empty" in problem and "--run-dir" in problem


def test_a_place_that_cannot_be_written_is_named_with_the_reason(setting, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wrong = setting.find_problems(ckpt_path=tmp_path / "file" / "x", metrics_dir="/proc/metrics")  # not even by root
    assert [problem for problem in wrong if "CKPT_DIR" in problem and "cannot be written: Not a directory" in problem]
    [problem] = [problem for problem in wrong if "METRICS_DIR" in problem]
    assert "/proc/metrics cannot be written: " in problem and "of disk space is free" not in problem


@pytest.mark.parametrize(
    ("model", "count", "gpus", "message", "remedy"),
    [
        ("openai/gpt-oss-120b", None, [], "8 GPUs, but this machine has none", "./train_grpo.sh --tiny"),
        ("openai/gpt-oss-20b", None, [H100], "there are 1, but .venv has the CPU stack", "setup.sh --gpu"),
        ("/copy/of/it", 234 * GB, [], " in the actor, needs 8 GPUs", "--tiny"),
        ("/of/a/test", 10**7, [], None, ""),
        ("org/absent", None, [], None, ""),
    ],
)
def test_large_model_is_rejected_on_the_cpu_stack(setting, monkeypatch, model, count, gpus, message, remedy) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: gpus)
    config = setting.make_config(pretrain=model)
    problems = [str(problem) for problem in check_gpus(config, replace(make_plan(config), model_bf16_bytes=count))]
    assert len(problems) == (0 if message is None else 1)
    assert all(message in problem and remedy in problem.split("->")[1] for problem in problems), problems


def test_a_cluster_to_join_has_to_answer(setting, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert setting.find_problems() == setting.find_problems(colocate_all_models=True, vllm_num_engines=2) == []
    [problem] = setting.find_problems()
    assert f"no Ray cluster answers at RAY_ADDRESS {address}" in problem and "unset RAY_ADDRESS" in problem


def test_the_run_directory_of_another_user_is_refused(setting, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RunFiles(setting.run_dir)
    setting.run_dir.mkdir()
    files.config.write_text("{}")
    if os.geteuid() == 0:
        os.chown(setting.run_dir, 1001, -1)
    else:
        other = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: other)
    assert any("belongs to another user" in problem for problem in setting.find_problems())
    for use in (lambda: run_dir.find_run(str(setting.run_dir)), files.hold):
        with pytest.raises(UserError, match=r"belongs to another user .*a copy of the run"):
            use()
    assert not files.lock.exists()


@pytest.mark.parametrize(
    ("kind", "limit", "message"),
    [
        (resource.RLIMIT_NOFILE, 64, "may open 64 files"),
        (resource.RLIMIT_NOFILE, 1024, None),
        (resource.RLIMIT_AS, 2 * GB, "may have 2.0 GB of address space"),
        (resource.RLIMIT_AS, 400 * GB, None),
        (resource.RLIMIT_NPROC, 300, "may have 300 processes and threads in all"),
        (resource.RLIMIT_NPROC, 1024, None),
    ],
)
def test_limits_of_the_shell_that_no_run_survives_are_refused(setting, monkeypatch, kind, limit, message) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() or 1000)
    monkeypatch.setattr(resource, "getrlimit", lambda asked: (limit if asked == kind else resource.RLIM_INFINITY,) * 2)
    problems = setting.find_problems()
    assert problems == [] if message is None else len(problems) == 1 and message in problems[0]
