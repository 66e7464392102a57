import importlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests import forked

ROOT = Path(__file__).parents[2]
LINKED = ("train_grpo.sh", "scripts", "grpo", "data", "reward", "patches", "pyproject.toml")


@pytest.fixture
def run_ranks(tmp_path):
    """Run a script of this folder in `world` processes with a gloo group, as Ray actors are in a run."""

    def run(world: int, *arguments: object, script: str = "ranks.py") -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, str(Path(__file__).parent / script), *map(str, arguments)]
        shared = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DS_ACCELERATOR": "cpu",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": "0",
            "OMP_NUM_THREADS": "1",
        }
        ranks = []
        for rank in range(world):
            log = (tmp_path / f"rank{rank}.log").open("w")
            ranks.append(
                forked.Program(command, env={**shared, "RANK": str(rank)}, stdout=log, stderr=subprocess.STDOUT)
            )
        try:
            codes = [rank.wait(timeout=400) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        logs = "\n".join((tmp_path / f"rank{rank}.log").read_text()[-3000:] for rank in range(world))
        assert codes == [0] * world, logs
        return logs

    return run


@pytest.fixture(scope="session")
def pristine_openrlhf(tmp_path_factory) -> Path:
    """The installed OpenRLHF with all patches reverted, in another place."""
    from benchmarks.step import copy_pristine

    return copy_pristine(tmp_path_factory.mktemp("stock") / "openrlhf")


@pytest.fixture(params=["stock", "patched"])
def load(request, pristine_openrlhf, monkeypatch):
    """Load a module of the stock or of the patched OpenRLHF from its file; what it imports is patched."""
    from benchmarks.step import load_module

    def load_file(name: str) -> ModuleType:
        patched = importlib.import_module(f"openrlhf.{name}")
        monkeypatch.setitem(sys.modules, patched.__name__, patched)  # comes back after the test
        return load_module(pristine_openrlhf if request.param == "stock" else None, name)

    load_file.stock = request.param == "stock"
    return load_file


def assert_fails_on_stock(load, check, *errors):
    """Run `check`: it must raise one of `errors` (by default AssertionError) on stock, and pass on ours."""
    if load.stock:
        with pytest.raises(errors or AssertionError):
            check()
    else:
        check()


@pytest.fixture
def peft_model(checkpoint):
    """A PeftModel on one rank, not partitioned."""
    from peft import LoraConfig, get_peft_model

    from grpo.model import loading

    lora = LoraConfig(r=2, target_modules=["q_proj", "o_proj"])
    return get_peft_model(loading.load_gpt_oss(checkpoint), lora, autocast_adapter_dtype=False)


@pytest.fixture
def write_sysfs(tmp_path, monkeypatch):
    """Write what Linux says of NUMA: the node of each GPU by its PCI bus, and the cores of each node."""
    from grpo.stack import machine

    def write(gpus: dict[str, int], cores: dict[int, str]) -> None:
        files = {f"bus/pci/devices/0000:{bus}:00.0/numa_node": str(node) for bus, node in gpus.items()}
        files |= {f"devices/system/node/node{node}/cpulist": text for node, text in cores.items()}
        for name, text in files.items():
            file = tmp_path / "sys" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")

    monkeypatch.setattr(machine, "SYSFS", tmp_path / "sys")
    return write


@pytest.fixture
def single_rank(monkeypatch):
    """The only rank of a group."""
    import torch

    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)  # where stock would stop without a GPU
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout by links, with the Python of these tests as its environment and nothing cached."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    return folder
