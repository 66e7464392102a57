"""The GPUs to compile for, and what was found: kernels, and what failed or was skipped. Imports nothing heavy."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

ACTOR, ENGINE = "actor", "engine"
SHARING = "engine with ACTOR_SHARD=engine"  # it keeps the layout of the model's files


@dataclass(frozen=True)
class Card:
    """A GPU.

    Attributes:
        capability: of CUDA.
        multiprocessors: how many it has; they decide some tiles.
        shared_memory: the most bytes of a block.
    """

    capability: tuple[int, int]
    multiprocessors: int
    shared_memory: int = 227 << 10


CARDS = {"sm_90": Card((9, 0), 132), "sm_100": Card((10, 0), 148)}  # NVIDIA H100, NVIDIA B200


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel.

    Attributes:
        owner: whose it is: the actor's are this project's, an engine's are vLLM's.
        part: the launches that needed it first.
        name: of the kernel; one with other tiles or arguments is another kernel of this name.
        registers: of a thread.
        spilled: bytes of a thread that lie in memory, for want of registers.
        shared: bytes of a block.
    """

    owner: str
    part: str
    name: str
    registers: int
    spilled: int
    shared: int

    @property
    def family(self) -> str:
        """The name without the tiles that triton_kernels writes into it."""
        return re.sub(r"_[A-Z]{3}_.*", "", self.name)


@dataclass
class Report:
    """The result for one architecture; failed and skipped parts with the reason."""

    architecture: str
    versions: dict[str, str]
    kernels: list[Kernel] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, values: dict[str, Any]) -> "Report":
        """Return the report that `dataclasses.asdict` wrote."""
        return cls(**values | {"kernels": [Kernel(**kernel) for kernel in values["kernels"]]})

    def faults(self) -> list[str]:
        """Say what must not be: a part that failed, or a kernel of this project that spills."""
        failed = [f"{self.architecture}, {part}: {why}" for part, why in self.failed.items()]
        return failed + [
            f"{self.architecture}, {kernel.part}: {kernel.name} spills {kernel.spilled} bytes"
            for kernel in self.kernels
            if kernel.owner == ACTOR and kernel.spilled
        ]


def table(reports: Iterable[Report]) -> Iterator[str]:
    """Yield a table of all kernels, in Markdown. Of kernels with the same name, it shows the most of each resource."""
    reports = list(reports)
    yield f"| kernel | {' | '.join(f'{one.architecture}: registers / spilled bytes / shared KiB' for one in reports)} |"
    yield "|---" * (len(reports) + 1) + "|"
    names = dict.fromkeys((kernel.owner, kernel.family) for report in reports for kernel in report.kernels)
    for owner, family in names:
        cells = []
        for report in reports:
            found = [kernel for kernel in report.kernels if (kernel.owner, kernel.family) == (owner, family)]
            registers, spilled, shared = (
                max((getattr(kernel, name) for kernel in found), default=0)
                for name in ("registers", "spilled", "shared")
            )
            cells.append(f"{registers} / {spilled} / {shared / 1024:.0f}" if found else "")
        yield f"| {owner}: {family} | {' | '.join(cells)} |"
