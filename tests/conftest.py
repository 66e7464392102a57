import math
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

# A shell starts jobs in the background with Ctrl-C ignored, and what tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# An example takes longer if the machine is busy, or if it is the first to start a worker process.
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
# The same commit gets the same examples, and so the same verdict.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repeatable")


def pytest_addoption(parser):
    parser.addoption(
        "--recipe-shape", action="store_true", help="give test_doors and test_options train_grpo.sh's shape"
    )


# Two processes run what takes long, each one half, in this order. It keeps memory low: what needs most (two_nodes,
# agreement) comes last in one half, and what needs next most (evaluate, one_gpu) first in the other.
HALVES = (
    ("end_to_end", "doors", "options", "resume", "two_nodes", "agreement"),
    ("evaluate", "one_gpu", "loss_and_lengths", "routing_replay", "launcher_processes", "judge_process", "gpu_check"),
)
# These start programs that are forked (tests/forked.py), as evaluate does. The server that forks them takes 8 seconds
# of CPU time and 0.6 GB in each process, so they run in the same one.
FORKED = (
    *("benchmarks/test_command.py", "benchmarks/test_hardware_checks.py"),
    *(f"grpo/checkpoint/test_{name}.py" for name in ("damage", "saving", "trainer_state")),
    *("grpo/model/test_loading.py", "grpo/model/test_shared_base.py", "grpo/model/test_zero.py"),
    "grpo/train/test_loss_ranks.py",
)


def _find_half(file: str) -> tuple[int, int] | None:
    """Return which half a file belongs to, and its place there; None for other files."""
    name = Path(file).stem.removeprefix("test_")
    if file.startswith("tests/stack/"):
        places = [(half, files.index(name)) for half, files in enumerate(HALVES) if name in files]
        return places[0] if places else (1, len(HALVES[1]))
    path = file.removeprefix("tests/")
    return (1, len(HALVES[1]) + 1 + FORKED.index(path)) if path in FORKED else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Keep the tests of a file in one process, in the order of the file, and each half of the long files in one."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            place = _find_half(file)
            return f"half {place[0]}" if place else file

    return Scheduling(config, log)


def pytest_collection_modifyitems(items):
    """Start with both halves, which take longest.

    Of the other files, those without the tiny model come first: it may still be in the making.
    """
    waiting = {item.path for item in items if "tiny_model" in item.fixturenames}

    def find_place(item: pytest.Item) -> tuple[int, int, bool]:
        return *(_find_half(item.nodeid.partition("::")[0]) or (len(HALVES), 0)), item.path in waiting

    items.sort(key=find_place)


@pytest.fixture(autouse=True)
def seed_draws():
    """Seed what a test draws, so that it does not depend on the tests before it."""
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def restore_matrix_products():
    """After each test, restore PyTorch's matrix products, which a test or an import may have replaced."""
    yield
    if cpu_matmul := sys.modules.get("grpo.model.cpu_matmul"):
        cpu_matmul.uninstall()


# As gpt-oss-20b has other numbers than gpt-oss-120b: layers, experts; and, so that nothing relies on it, heads.
SMALL_SHAPE = {
    "num_hidden_layers": 3,
    "num_local_experts": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 64,
}


def write_tokenizer_with_stops(folder: Path) -> None:
    """Write the tiny model's tokenizer, and which of its tokens end a response."""
    from scripts.tiny_model.checkpoint import write_json
    from scripts.tiny_model.tokenizer import STOP_TOKENS, build_tokenizer, write_tokenizer

    write_tokenizer(folder)
    stops = [build_tokenizer().token_to_id(name) for name in STOP_TOKENS]
    write_json(folder / "generation_config.json", {"eos_token_id": stops})


def write_gpt_oss(directory: Path, shape: dict[str, int], vocabulary: int = 97, stop: int = 1, pad: int = 0) -> Path:
    """Write a gpt-oss checkpoint with random weights in the real file format: MXFP4 experts, shards, index."""
    import torch  # here, since some tests need no torch
    from huggingface_hub import save_torch_state_dict
    from transformers import GptOssForCausalLM

    from scripts.tiny_model.checkpoint import tiny_config, write_config
    from tests.packed import packed_tensors

    torch.manual_seed(0)
    config = tiny_config(vocabulary)
    config.update(shape)
    config.layer_types = config.layer_types[: config.num_hidden_layers]
    model = GptOssForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    directory.mkdir(parents=True, exist_ok=True)
    save_torch_state_dict(dict(packed_tensors(model)), directory, max_shard_size=300_000)
    write_config(directory, config, stop_ids=[stop], pad_id=pad)
    return directory


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Path:
    """A checkpoint in the shape of gpt-oss-120b, in small."""
    return write_gpt_oss(tmp_path_factory.mktemp("gpt-oss"), {"num_hidden_layers": 2})


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory) -> Path:
    """A checkpoint in the shape of gpt-oss-20b, in small."""
    return write_gpt_oss(tmp_path_factory.mktemp("gpt-oss-small"), SMALL_SHAPE)


@pytest.fixture(scope="session", params=["checkpoint", "small_checkpoint"], ids=["120b", "20b"])
def either_checkpoint(request) -> Path:
    """A checkpoint in one of the two shapes."""
    return request.getfixturevalue(request.param)


def write_trainer(folder: Path, shapes: dict[str, tuple[int, ...]], ranks: int = 2, optimizer_step: int = 8) -> Path:
    """Write a trainer's state of zeros, as so many ranks save it; `shapes` are the adapter's."""
    import torch

    from grpo.checkpoint import trainer_state

    folder.mkdir(parents=True)
    state = {"ranks": ranks, "optimizer_step": optimizer_step, "counters": {}, "scheduler": {}, "client_states": {}}
    trainer_state.write_file(folder / "state.safetensors", state)
    layout, offset = {}, 0
    for name, shape in shapes.items():
        layout[name] = (0, offset, shape)
        offset += -(-math.prod(shape) // ranks)
    flat = {kind: [torch.zeros(offset)] for kind in ("master", "exp_avg", "exp_avg_sq")}
    for rank in range(ranks):
        trainer_state.write_file(folder / f"rank_{rank}.safetensors", {"layout": layout, "random": {}, **flat})
    return folder


@pytest.fixture
def make_trainer() -> Callable[..., Path]:
    return write_trainer
