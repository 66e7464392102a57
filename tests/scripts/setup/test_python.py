"""The Python, the virtual environment and the variables that the setup script finds or makes."""

import shutil
import subprocess
import sys
from pathlib import Path

from .sandbox import run_setup, write_program


def find_python(root: Path, path: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """`find_python` of the script, with `path` and the system's tools as PATH and an empty home."""
    return subprocess.run(
        ["bash", "-c", 'source "$1"; find_python', "-", str(root / "scripts" / "setup.sh")],
        env={"PATH": f"{path}:/usr/bin:/bin", "HOME": str(path)} | environ,
        capture_output=True,
        text=True,
    )


SHIM = "#!/bin/sh\necho 'pyenv: python3.11: command not found' >&2\nexit 127\n"
OLD = "#!/bin/sh\necho 'is Python 3.10'\nexit 1\n"


def test_a_python_that_exists_but_fails_is_passed_over(checkout: Path, tmp_path: Path) -> None:
    path = tmp_path / "bin"
    write_program(path / "python3.11", SHIM)
    write_program(path / "python3.12", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    assert find_python(checkout, path).stdout.strip() == str(path / "python3.12")


def test_no_python_names_what_was_tried_and_what_to_install(checkout: Path, tmp_path: Path) -> None:
    path = tmp_path / "bin"
    for name in ("python3.11", "python3.12"):
        write_program(path / name, SHIM)
    for name in ("python3", "python"):
        write_program(path / name, OLD)
    result = find_python(checkout, path)
    assert result.returncode == 1
    for expected in (
        "apt install python3.11-venv",
        "python3.11: pyenv: python3.11: command not found",
        "is Python 3.10",
    ):
        assert expected in result.stderr


def test_python_from_the_environment_is_used_or_refused(checkout: Path, tmp_path: Path) -> None:
    path = tmp_path / "bin"
    write_program(path / "python3.11", SHIM)
    assert find_python(checkout, path, PYTHON=sys.executable).stdout.strip() == sys.executable
    refused = find_python(checkout, path, PYTHON=str(path / "none"))
    assert refused.returncode == 1 and str(path / "none") in refused.stderr


def test_an_environment_behind_a_link_is_left_alone(checkout: Path, tmp_path: Path) -> None:
    other = (checkout / ".venv").rename(tmp_path / "other")
    (other / "precious").touch()
    (checkout / ".venv").symlink_to(other)
    refused = run_setup(checkout, "--cpu")
    assert refused.returncode != 0 and "link" in refused.stderr
    assert (other / "precious").exists()


def test_a_moved_or_broken_venv_is_noticed(checkout: Path) -> None:
    def is_sound(root: Path) -> bool:
        script = 'source "$1"; venv_is_sound'
        return subprocess.run(["bash", "-c", script, "-", str(root / "scripts" / "setup.sh")]).returncode == 0

    assert is_sound(checkout)
    moved = checkout.rename(checkout.with_name("moved"))
    assert not is_sound(moved)
    moved = moved.rename(checkout)
    (moved / ".venv" / "bin" / "python").unlink()
    assert not is_sound(moved)


def source_script(root: Path, script: str, **environ: str) -> dict[str, str]:
    """The variables of a shell with `environ` after `script`, in which `env_of FOLDER` sources a checkout's env.sh."""
    script = f'set -eu; env_of() {{ source "$1/scripts/env.sh"; }}; cd "$1"; {script}; env'
    run = subprocess.run(
        ["bash", "-c", script, "-", str(root)],
        env={"PATH": "/usr/bin:/bin", **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split("=", 1) for line in run.stdout.splitlines() if "=" in line)


TWICE = 'env_of .; first="$(env)"; env_of .; [ "$first" = "$(env)" ]'


def test_env_is_shared_and_sourcing_twice_changes_nothing(checkout: Path) -> None:
    before = source_script(checkout, TWICE)
    assert before["PATH"].split(":")[0] == str(checkout / ".venv" / "bin")
    assert before["PYTHONPATH"] == str(checkout)
    assert before["TORCHINDUCTOR_CACHE_DIR"] == str(checkout / ".venv" / "torchinductor"), "outside of a run's TMPDIR"
    assert "DS_ACCELERATOR" not in before and "VLLM_CPU_KVCACHE_SPACE" not in before
    assert run_setup(checkout, "--cpu").returncode == 0
    after = source_script(checkout, TWICE, VLLM_CPU_KVCACHE_SPACE="3", PYTHONPATH="/elsewhere", PYTHONOPTIMIZE="2")
    assert "PYTHONOPTIMIZE" not in after, "-OO removes documentation that the commands print"
    assert after["DS_ACCELERATOR"] == "cpu"
    assert after["VLLM_CPU_KVCACHE_SPACE"] == "3"  # the user's word counts
    assert before["VLLM_USE_V2_MODEL_RUNNER"] == after["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert after["PYTHONPATH"] == f"{checkout}:/elsewhere"


# What only the CPU stack sets.
CPU_ALONE = {
    "DS_ACCELERATOR",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_CPU_OMP_THREADS_BIND",
    "TORCHDYNAMO_DISABLE",
    "OMP_WAIT_POLICY",
    "VLLM_SLEEP_WHEN_IDLE",
}


def test_a_shell_of_the_cpu_stack_does_not_turn_the_gpu_stack_into_cpu(checkout: Path) -> None:
    assert run_setup(checkout, "--cpu").returncode == 0
    assert source_script(checkout, TWICE).keys() >= CPU_ALONE
    elsewhere = checkout.with_name("gpu checkout")
    shutil.copytree(checkout / "scripts", elsewhere / "scripts")
    other = source_script(checkout, 'env_of .; env_of "../gpu checkout"')
    assert other["VIRTUAL_ENV"] == str(elsewhere / ".venv") and not other.keys() & CPU_ALONE
    to_gpu = "env_of .; export VLLM_CPU_KVCACHE_SPACE=3; rm -r .venv/lib/python3.*/site-packages/vllm_cpu-*; env_of ."
    same = source_script(checkout, to_gpu, TORCHDYNAMO_DISABLE="1")
    assert same.keys() & CPU_ALONE == {"TORCHDYNAMO_DISABLE", "VLLM_CPU_KVCACHE_SPACE"}, "the user's values stay"
