"""Which node of a cluster serves each engine and each actor rank.

An engine is never split over nodes: its tensor-parallel workers talk at every layer. The actor's ranks are packed on as
few nodes as possible, for the same reason. The launcher decides, and the driver asks Ray for these places.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

from grpo.stack.counted import format_count
from grpo.stack.problem import UserError

VARIABLE = "GRPO_SEATS"  # set by the launcher for a run on several nodes
_MOST_CHOICES = 2000  # of nodes for the actor; a cluster with more has many equal ones


@dataclass(frozen=True)
class Node:
    """A node by its address in Ray, and the GPUs that nobody uses."""

    address: str
    gpus: int


@dataclass(frozen=True)
class Seats:
    """The places of a run.

    Attributes:
        home: the launcher's node, which also has driver and controller.
        engines: the address of the node of each engine, in their order.
        ranks: that of each actor rank.
    """

    home: str
    engines: tuple[str, ...]
    ranks: tuple[str, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the nodes of the run, the launcher's first."""
        return tuple(dict.fromkeys((self.home, *self.ranks, *self.engines)))

    @property
    def others(self) -> tuple[str, ...]:
        """Return the nodes other than the launcher's."""
        return self.nodes[1:]

    def dump(self) -> str:
        """Return the value of VARIABLE."""
        return json.dumps(asdict(self))


def read(environ: Mapping[str, str] | None = None) -> Seats | None:
    """Return the places that the launcher has chosen; None for a run on one node."""
    text = (os.environ if environ is None else environ).get(VARIABLE)
    if not text:
        return None
    values = json.loads(text)
    return Seats(values["home"], tuple(values["engines"]), tuple(values["ranks"]))


def place(nodes: Sequence[Node], home: str, engines: int, width: int, ranks: int) -> Seats:
    """Choose the places of a run.

    The actor goes to the launcher's node if it fits there: then no folder needs to be shared. The engines fill the
    other nodes first.

    Args:
        nodes: of the cluster, with their free GPUs.
        home: the address of the launcher's node.
        width: GPUs of one engine.

    Raises:
        UserError: if the free GPUs do not suffice.
    """
    ordered = sorted(nodes, key=lambda node: node.address != home)
    for chosen in _actor_nodes(ordered, ranks):
        free = {node.address: node.gpus for node in ordered}
        seats_of_ranks = _fill(free, chosen, ranks, 1)
        seats_of_engines = _fill(free, [*(node.address for node in ordered[1:]), ordered[0].address], engines, width)
        if len(seats_of_engines) == engines:
            return Seats(home, tuple(seats_of_engines), tuple(seats_of_ranks))
    have = ", ".join(f"{node.address} has {node.gpus}" for node in ordered)
    raise UserError(
        f"the cluster has no room for {format_count(engines, 'engine')} of {format_count(width, 'GPU')} and "
        f"{format_count(ranks, 'actor rank')}: free GPUs: {have}",
        "lower NUM_ENGINES, ENGINE_TP or ACTOR_GPUS, add a node, or wait until others free GPUs; an engine fits on one "
        "node only",
    )


def _actor_nodes(nodes: Sequence[Node], ranks: int) -> Iterator[list[str]]:
    """Yield sets of nodes that hold all ranks: the smallest first, and among these those with the launcher's node."""
    usable = [node for node in nodes if node.gpus]
    largest = sorted(usable, key=lambda node: -node.gpus)
    tried = 0
    for count in range(1, len(usable) + 1):
        if sum(node.gpus for node in largest[:count]) < ranks:
            continue
        for chosen in combinations(usable, count):
            tried += 1
            if tried > _MOST_CHOICES:
                yield [node.address for node in largest[:count]]
                return
            if sum(node.gpus for node in chosen) >= ranks:
                yield [node.address for node in chosen]


def _fill(free: dict[str, int], addresses: Sequence[str], count: int, width: int) -> list[str]:
    """Take places for up to `count` things of `width` GPUs, node by node; return the address of each."""
    taken: list[str] = []
    for address in addresses:
        fit = min(count - len(taken), free[address] // width)
        free[address] -= fit * width
        taken += [address] * fit
    return taken
