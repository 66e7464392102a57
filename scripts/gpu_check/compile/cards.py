"""The GPUs to compile for. Imports nothing heavy."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """A GPU.

    Attributes:
        capability: of CUDA.
        multiprocessors: how many it has; they decide some tiles.
        shared_memory: the most bytes of a block.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_memory: int = 227 << 10


CARDS = {"sm_90": Card("NVIDIA H100", (9, 0), 132), "sm_100": Card("NVIDIA B200", (10, 0), 148)}
