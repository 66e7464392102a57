"""What is written comes back with its types, to the bit; nothing that a file holds runs."""

import math
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from grpo.checkpoint import trainer_state
from grpo.model.model_files import CheckpointError


def is_same(one: object, other: object) -> bool:
    """Compare trees of plain values and tensors, types included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return one == other or (one != one and other != other)


def test_values_come_back_as_they_were(tmp_path: Path) -> None:
    whole = torch.randn(4, 6)
    state = {
        "numbers": [0.1, 1e-310, -0.0, math.inf, math.nan, 2**70, True, None],
        "tuple": (1, ("a",), []),
        "keys": {1: "one", (2, "b"): "two", "$tensor": {"$tuple": 3}},
        "text": "\ud7ff\u2028 \x00 \U0001f600",
        "views": [whole, whole, whole[1:3, 2:5], whole.T, whole[0, 0]],
        "others": [torch.tensor([True]), torch.zeros(0, 3), torch.tensor(7), whole.bfloat16(), torch.ones(2).byte()],
        "gradient": torch.ones(2, requires_grad=True),
    }
    trainer_state.write_file(tmp_path / "state.safetensors", state)
    back = trainer_state.read_file(tmp_path / "state.safetensors")
    assert is_same(back, state | {"gradient": torch.ones(2)})
    assert math.copysign(1, back["numbers"][2]) == -1
    with pytest.raises(TypeError):
        trainer_state.write_file(tmp_path / "other.safetensors", {"a set": {1}})


def test_each_tensor_is_looked_at_equally_often(tmp_path: Path, monkeypatch) -> None:
    """The batch ahead has thousands: a save of it took 4 seconds, in which each was compared with all before it."""
    reads, read = [], torch.Tensor.untyped_storage
    monkeypatch.setattr(torch.Tensor, "untyped_storage", lambda tensor: reads.append(1) or read(tensor))
    counts = []
    for number in (20, 40):
        reads.clear()
        trainer_state.write_file(tmp_path / "state.safetensors", [torch.ones(1) for _ in range(number)])
        counts.append(len(reads) / number)
    assert counts[1] < 1.5 * counts[0]


@pytest.mark.parametrize("text", ["{", '{"$tensor": "9"}', '{"$tensor": [1]}', '{"$pairs": [1]}', "[" * 100_000, None])
def test_malformed_states_are_refused(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "state.safetensors"
    held = {} if text is None else {"json": torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)}
    save_file(held, file)
    with pytest.raises(CheckpointError):
        trainer_state.read_file(file)


class Runs:
    def __reduce__(self):
        return Path.touch, (Path("ran"),)


def test_a_pickle_under_the_name_of_a_state_does_not_run(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state.safetensors").write_bytes(pickle.dumps(Runs()))
    with pytest.raises(CheckpointError, match="state"):
        trainer_state.read(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("ranks", "layout"),
    [
        *[("two", {}), (0, {}), (-1, {}), (1, 3), (1, {"x": 1}), (1, {"x": ("a", 0, (2, 2))})],
        *[(1, {"x": (group, offset, (2, 2))}) for group, offset in ((9, 0), (-1, 0), (0, -2))],
    ],
)
def test_a_trainer_state_of_wrong_types_is_refused(ranks, layout, tmp_path):
    state = {name: None for name in ("optimizer_step", "counters", "scheduler", "client_states")}
    trainer_state.write_file(tmp_path / trainer_state.STATE, state | {"ranks": ranks})
    rank = {kind: [torch.zeros(4)] for kind in trainer_state.KINDS}
    trainer_state.write_file(tmp_path / "rank_0.safetensors", rank | {"layout": layout, "random": None})
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        trainer_state.read(tmp_path)
