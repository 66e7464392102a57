import math
import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

# An example takes longer if the machine is busy, or if it is the first to start a worker process.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Keep the tests of a file in one process, in the order of the file, and those of the real stack all in one."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "stack" if file.startswith("tests/stack/") else file

    return Scheduling(config, log)


def pytest_collection_modifyitems(items):
    """Start with the tests of the real stack. One process runs them all, and the other files run beside it.

    Files without the tiny model come first: it may still be in the making.
    """
    waiting = {item.path for item in items if "tiny_model" in item.fixturenames}
    items.sort(key=lambda item: (not item.nodeid.startswith("tests/stack/"), item.path in waiting))


@pytest.fixture(autouse=True)
def own_products():
    """After each test, restore PyTorch's matrix products, which a test or an import may have replaced."""
    yield
    cpu_matmul = sys.modules.get("grpo.model.cpu_matmul")
    if cpu_matmul and cpu_matmul.install.cache_info().currsize:
        if library := cpu_matmul.install():
            library._destroy()
        cpu_matmul.install.cache_clear()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Path:
    """A gpt-oss checkpoint with random weights in the real file format: MXFP4 experts, shards, index."""
    import torch  # here, since some tests need no torch
    from transformers import GptOssForCausalLM

    from scripts.tiny_model.checkpoint import packed_tensors, write_config, write_shards
    from scripts.tiny_model.warm_start import tiny_config

    torch.manual_seed(0)
    config = tiny_config(vocab_size=97)
    config.num_hidden_layers, config.layer_types = 2, config.layer_types[:2]
    model = GptOssForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    directory = tmp_path_factory.mktemp("gpt-oss")
    write_shards(directory, packed_tensors(model), shard_bytes=300_000)
    write_config(directory, config, stop_ids=[1], pad_id=0)
    return directory


def write_trainer(folder: Path, shapes: dict[str, tuple[int, ...]], ranks: int = 2, optimizer_step: int = 8) -> Path:
    """Write a trainer's state of zeros, as so many ranks save it; `shapes` are the adapter's."""
    import torch

    folder.mkdir(parents=True)
    state = {"ranks": ranks, "optimizer_step": optimizer_step, "counters": {}, "scheduler": {}, "client_states": {}}
    torch.save(state, folder / "state.pt")
    layout, offset = {}, 0
    for name, shape in shapes.items():
        layout[name] = (0, offset, shape)
        offset += -(-math.prod(shape) // ranks)
    flat = {kind: [torch.zeros(offset)] for kind in ("master", "exp_avg", "exp_avg_sq")}
    for rank in range(ranks):
        torch.save({"layout": layout, "random": {}, **flat}, folder / f"rank_{rank}.pt")
    return folder


@pytest.fixture
def make_trainer() -> Callable[..., Path]:
    return write_trainer
