"""The places of a run on several nodes of equal size, as the plan needs them; the nodes are "1", "2", ...

`grpo.stack.seats` decides, here as in a run. Node "1" is the launcher's.
"""

from collections.abc import Iterator

from grpo.launch.config import Config
from grpo.stack import seats
from grpo.stack.counted import format_count
from grpo.stack.problem import Problem, UserError
from grpo.stack.seats import Node, Seats


def gpus_of_node(config: Config) -> int:
    """Return the GPUs of a node. One node without a stated number has as many as the run needs."""
    return int(config.args.gpus_per_node or config.gpus)


def is_stated(config: Config) -> bool:
    """Return whether the user said something about nodes."""
    return config.args.nodes > 1 or config.args.gpus_per_node is not None


def choose_seats(config: Config) -> Seats | None:
    """Return the places of a run; None if it does not fit, or if engines and actor share GPUs."""
    args = config.args
    if args.colocate_all_models:
        return None
    shape = (args.vllm_num_engines, args.vllm_tensor_parallel_size, config.actor_ranks)
    return place(args.nodes, gpus_of_node(config), *shape)


def place(count: int, gpus: int, engines: int, width: int, ranks: int) -> Seats | None:
    """Return the places on this many free nodes; None if there is no room."""
    nodes = [Node(str(number), gpus) for number in range(1, count + 1)]
    try:
        return seats.place(nodes, "1", engines, width, ranks)
    except UserError:
        return None


def most_engines(count: int, gpus: int, width: int, ranks: int) -> int:
    """Return how many engines fit on this many nodes beside the ranks."""
    of_ranks = -(-ranks // gpus)
    if of_ranks > count:
        return 0
    return (of_ranks * gpus - ranks) // width + (count - of_ranks) * (gpus // width)


def fewest_nodes(gpus: int, engines: int, width: int, ranks: int) -> int:
    """Return how many nodes have room. An engine has to fit on one."""
    of_ranks = -(-ranks // gpus)
    others = max(0, engines - most_engines(of_ranks, gpus, width, ranks))
    return of_ranks - (-others // (gpus // width))


def problems(config: Config) -> Iterator[Problem]:
    """Yield why engines and actor have no place, with the remedy."""
    args, width = config.args, config.args.vllm_tensor_parallel_size
    if not is_stated(config) or args.gpus_per_node is None or args.colocate_all_models or choose_seats(config):
        return
    gpus = gpus_of_node(config)
    if width > gpus:
        yield Problem(
            f"an engine has ENGINE_TP {width} GPUs, but a node has {gpus}, and an engine does not span nodes",
            f"lower ENGINE_TP to {gpus} or less, or use nodes with {width} GPUs (GPUS_PER_NODE)",
        )
        return
    engines, ranks = args.vllm_num_engines, config.actor_ranks
    have = f"{format_count(args.nodes, 'node')} of {gpus}"
    whole = "" if config.gpus > args.nodes * gpus else ", since an engine does not span nodes"
    fit = most_engines(args.nodes, gpus, width, ranks)
    yield Problem(
        f"{format_count(engines, 'engine')} of {format_count(width, 'GPU')} and {format_count(ranks, 'actor GPU')} do "
        f"not fit on {have}{whole}",
        f"set NODES={fewest_nodes(gpus, engines, width, ranks)}, or lower "
        + (f"NUM_ENGINES to {fit}" if fit else "ACTOR_GPUS"),
    )
