"""One copy of the frozen base for two processes on one device: the engine owns it, the actor maps it.

A description says where each tensor is. vLLM and Ray can pass it on, since it holds no tensors. A storage is one
allocation of the owner, and several tensors may lie in it: q, k and v are rows of the engine's fused weight.

On a CPU a storage is a sealed file in memory. Linux then refuses to write to it, or to map it for writing, in any
process. On a GPU it is memory that CUDA shares between processes, which has no such protection; there the digest shows
whether something was written.
"""

import fcntl
import hashlib
import mmap
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

import torch
from torch import nn

from grpo.model.model_reader import CheckpointReader

_ALIGNED = 64  # bytes, as the allocators of PyTorch align at least
_PIECE = 1 << 22  # words of a tensor that are summed at a time


class BaseError(RuntimeError):
    """The base is not what it was, or not where it should be."""


class Description(TypedDict):
    """Where the tensors of a base lie.

    Attributes:
        device: "cpu", or the id of the GPU.
        storages: how another process maps each allocation: the path of a file, or the arguments for CUDA.
        tensors: of each name the number of its storage, its dtype, shape, stride, and offset in elements.
        digest: see :func:`compute_digest`.
    """

    device: str
    storages: list[Any]
    tensors: dict[str, tuple[int, str, list[int], list[int], int]]
    digest: str


class MemoryFile:
    """An unnamed file of some bytes in memory, which can be sealed once it is written.

    It stays until the last process that holds or maps it ends or lets go of it. Unlike a file in /dev/shm, it leaves
    nothing behind however the process ends, and Docker's limit on /dev/shm does not apply.

    Attributes:
        path: the name by which other processes of this user open it, while this one lives.
    """

    def __init__(self, size: int, label: str = "grpo-base") -> None:
        descriptor = os.memfd_create(label, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._file = os.fdopen(descriptor, "r+b", buffering=0)
        self._file.truncate(size)
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"

    def map_for_writing(self) -> torch.Tensor:
        """Return the memory as uint8 ``[size]``. Only a file that nothing maps for writing can be sealed."""
        return torch.frombuffer(mmap.mmap(self._file.fileno(), 0), dtype=torch.uint8)

    def seal(self) -> torch.Tensor:
        """Forbid all writing, to this process too, and return the memory as uint8 ``[size]``.

        Raises:
            BlockingIOError: if it is still mapped for writing.
        """
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, seals)
        return _map_file(self.path)


def seal_parameters(model: nn.Module, fill: Callable[[], object]) -> MemoryFile:
    """Put the parameters of a model on the CPU into memory of their own, let ``fill`` write them, and seal it."""
    places, size = [], 0
    for parameter in model.parameters():
        places.append((parameter, parameter.shape, slice(size, size + parameter.nbytes)))
        size += -(-parameter.nbytes // _ALIGNED) * _ALIGNED
    memory = MemoryFile(size)

    def place(whole: torch.Tensor) -> None:
        for parameter, shape, part in places:
            parameter.data = whole[part].view(parameter.dtype).view(shape)

    place(memory.map_for_writing())
    fill()
    for parameter, _, _ in places:
        parameter.data = parameter.data.new_empty(0)
    place(memory.seal())
    return memory


def describe(tensors: Mapping[str, torch.Tensor], memory: MemoryFile | None = None) -> Description:
    """Describe the base that this process owns.

    Args:
        tensors: by the actor's names, all on one device.
        memory: in which all of them lie; None on a GPU.
    """
    storages: dict[int, Any] = {}
    places = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        if (address := storage.data_ptr()) not in storages:
            # On a GPU, the arguments with which another process calls `_new_shared_cuda`.
            storages[address] = memory.path if memory else storage._share_cuda_()
        dtype = str(tensor.dtype).removeprefix("torch.")
        number = list(storages).index(address)
        places[name] = number, dtype, list(tensor.shape), list(tensor.stride()), int(tensor.storage_offset())
    return Description(
        device="cpu" if memory else _name_gpu(),
        storages=list(storages.values()),
        tensors=places,
        digest=compute_digest(tensors),
    )


def map_tensors(description: Description) -> dict[str, torch.Tensor]:
    """Map a base that another process owns, and return its tensors by name.

    Raises:
        BaseError: if its owner has ended or uses another GPU, or the tensors are not those that it described.
    """
    if description["device"] not in ("cpu", _name_gpu()):
        raise BaseError("the engine that holds the base is on another GPU")
    try:
        storages = [_open(handle) for handle in description["storages"]]
    except FileNotFoundError as error:
        raise BaseError(f"the engine that holds the base has ended ({error})") from error
    tensors = {}
    for name, (number, dtype, shape, stride, offset) in description["tensors"].items():
        empty = torch.empty(0, dtype=getattr(torch, dtype), device=storages[number].device)
        tensors[name] = empty.set_(storages[number], offset, shape, stride)
    check_digest(tensors, description["digest"])
    return tensors


def check_digest(tensors: Mapping[str, torch.Tensor], expected: str) -> None:
    """Raise BaseError if the tensors are not those of a digest."""
    if (found := compute_digest(tensors)) != expected:
        raise BaseError(
            f"the frozen base has changed: its digest was {expected[:12]} and is {found[:12]}. Something has written "
            "to the memory that engine and actor share. Continue from the last checkpoint"
        )


def compute_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return a digest of tensors: of their names, types and shapes, and of a sum of the words of each.

    The sum is modulo 2**64. Each word has an odd weight by its place, so a single changed word always shows.
    It is computed where the tensors are, at the speed of the memory, with a few megabytes.
    """
    ordered = sorted(tensors.items())
    facts = [(name, str(tensor.dtype), list(tensor.shape)) for name, tensor in ordered]
    sums = torch.stack([_sum_words(tensor) for _, tensor in ordered]).tolist()
    return hashlib.sha256(repr((facts, sums)).encode()).hexdigest()


def _sum_words(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    fits = (len(flat) | int(flat.storage_offset())) % 8 == 0  # both must be multiples of an int64's size
    words = flat.view(torch.int64) if fits else flat
    weights = 2 * torch.arange(min(_PIECE, len(words)), device=flat.device) + 1
    pieces = [(piece * weights[: len(piece)]).sum() for piece in words.split(_PIECE)]
    return (torch.stack(pieces) * (2 * torch.arange(len(pieces), device=flat.device) + 1)).sum()


def _map_file(path: str) -> torch.Tensor:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Populated, so that it holds the padding too, which is not read.
        mapped = mmap.mmap(descriptor, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ)
    finally:
        os.close(descriptor)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that the mapping is read-only
        return torch.frombuffer(mapped, dtype=torch.uint8)


def _name_gpu() -> str:
    """Return the id of this process's GPU, which is the same in all processes; "" without one."""
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid) if torch.cuda.is_available() else ""


def _open(handle: Any) -> torch.UntypedStorage:
    if isinstance(handle, str):
        return _map_file(handle).untyped_storage()
    _device, *rest = handle  # the owner may number its GPUs otherwise
    return torch.UntypedStorage._new_shared_cuda(torch.cuda.current_device(), *rest)


class MappedBase:
    """The base of the actor's model, which lies in the memory of the engine on its GPU."""

    def __init__(self, description: Description) -> None:
        self._tensors = map_tensors(description)
        self.digest = description["digest"]
        self._buffers: dict[str, tuple[nn.Module, str]] = {}

    def register(self, owner: nn.Module, leaf: str, name: str, described: torch.Tensor) -> None:
        """Make a tensor of the base the buffer ``leaf`` of a module.

        Raises:
            BaseError: if the base lacks the tensor, or holds another than ``described``.
        """
        tensor = self._tensors.get(name)
        wanted = tuple(described.shape), described.dtype == torch.uint8
        if tensor is None or (tuple(tensor.shape), tensor.dtype == torch.uint8) != wanted:
            raise BaseError(f"the engine does not hold {name} as the actor computes it: they load different models")
        self._buffers[name] = owner, leaf
        owner.register_buffer(leaf, tensor if tensor.dtype == torch.uint8 else tensor.bfloat16())  # bf16 stays itself

    def compare(self, reader: CheckpointReader) -> None:
        """Compare all bytes with the model's files, as an actor with its own base reads them.

        Raises:
            BaseError: if they differ.
        """
        for name, (owner, leaf) in self._buffers.items():
            held = getattr(owner, leaf)
            for number, part in enumerate(held.reshape(-1).split(_PIECE)):
                expected = torch.empty_like(part)
                reader.fill(name, held.shape, number * _PIECE, expected)
                if not torch.equal(part.view(torch.uint8), expected.view(torch.uint8)):
                    raise BaseError(f"the engine holds other values of {name} than the model's files")

    def check(self) -> None:
        """Raise BaseError if the base has changed since it was loaded."""
        check_digest(self._tensors, self.digest)
