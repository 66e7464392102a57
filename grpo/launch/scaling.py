"""What the nodes of a run do and receive, and whether another node would help: lines of the plan."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from grpo.launch import cost, equal_nodes, fitting, gpu_limits
from grpo.launch.checks.batches import check_batches
from grpo.launch.config import Config
from grpo.launch.host_memory import is_for_gpus
from grpo.launch.judge import RunJudge
from grpo.launch.phases import Rates
from grpo.launch.plan import WEIGHT_BYTES, Plan, size
from grpo.model.architecture import NO_SHARD
from grpo.stack.counted import format_numbers
from grpo.stack.seats import Seats


@dataclass(frozen=True)
class Choice:
    """A way to use the nodes, and the seconds of a step."""

    engines: int
    ranks: int
    seconds: float

    def ways(self, config: Config) -> str:
        """Return the settings that differ from the run's."""
        settings = {"NUM_ENGINES": (self.engines, config.args.vllm_num_engines)}
        settings["ACTOR_GPUS"] = (self.ranks, config.actor_ranks)
        return " and ".join(f"{name}={new}" for name, (new, old) in settings.items() if new != old)


def describe(plan: Plan, config: Config, judge: RunJudge) -> list[str]:
    """Return lines for people; [] if the user said nothing about nodes, or if the run does not fit on them."""
    places = equal_nodes.choose_seats(config) if equal_nodes.is_stated(config) else None
    if places is None:
        return []
    count, gpus = config.args.nodes, equal_nodes.gpus_of_node(config)
    adapter = (plan.lora_parameters or 0) * WEIGHT_BYTES
    lines = [f"nodes       {count} of {gpus} GPUs, {config.gpus} of {count * gpus} used; node 1 is the launcher's"]
    lines += [f"  node {node:<5}{_node(config, places, str(node), adapter)}" for node in range(1, count + 1)]
    lines += _traffic(plan, config, places, adapter)
    if plan.architecture and is_for_gpus(plan.architecture):
        rates = Rates.from_report()
        lines += _further(config, lambda changed: cost.seconds_of_step(plan, changed, judge, rates))
    return lines


def _node(config: Config, places: Seats, node: str, adapter: int) -> str:
    """Say who has which GPUs of a node. On each, Ray gives them to the engines first, as they ask first."""
    width = config.args.vllm_tensor_parallel_size
    engines = [number for number, place in enumerate(places.engines) if place == node]
    ranks = [number for number, place in enumerate(places.ranks) if place == node]
    parts, first = [], len(engines) * width
    if engines:
        parts.append(f"{format_numbers('engine', engines)} on {format_numbers('GPU', range(first))}")
    if ranks:
        parts.append(
            f"{format_numbers('actor rank', ranks)} on {format_numbers('GPU', range(first, first + len(ranks)))}"
        )
    if not parts:
        return "unused: lower NODES, or raise NUM_ENGINES or ACTOR_GPUS"
    received = equal_nodes.sync_bytes(places, node, adapter)
    if received:
        return f"{', '.join(parts)}; a sync sends it {size(received)}, once for all its engines"
    return f"{', '.join(parts)}; a sync " + ("starts here" if node == places.ranks[0] else "sends it nothing")


def _traffic(plan: Plan, config: Config, places: Seats, adapter: int) -> Iterator[str]:
    engines = sum(node != places.ranks[0] for node in places.engines)
    if engines:
        receivers = len(set(places.engines) - {places.ranks[0]})
        yield (
            f"  sync      {size(receivers * adapter)} over the network, {size(adapter)} to each node that gets it; "
            f"{size(engines * adapter)} if each engine got its own"
        )
    share = equal_nodes.compute_gathered_share(places)
    if share and config.args.actor_shard != NO_SHARD and plan.model_actor_bytes:
        yield (
            f"  gathers   up to {size(int(share * plan.model_actor_bytes))} into a node in each pass over the model; "
            "ACTOR_SHARD=none needs none, if a GPU holds the model"
        )


def _further(config: Config, seconds: Callable[[Config], float]) -> Iterator[str]:
    """Yield the seconds of a step with all GPUs of the nodes in use, and with another node."""
    count = config.args.nodes
    now = seconds(config)
    full = _best(choices(config, count, seconds))
    if full and full.seconds < now:
        yield f"  unused    with {full.ways(config)}, a step takes {full.seconds:,.0f} s instead of {now:,.0f}"
        now = full.seconds
    best = _best(choices(config, count + 1, seconds))
    if best is None or best.seconds >= now:
        yield f"  node {count + 1:<5}would not help: no division that fits takes less than {now:,.0f} s per step"
        return
    gain = f"a step would take {best.seconds:,.0f} s instead of {now:,.0f}"
    yield f"  node {count + 1:<5}{gain}, with {best.ways(config)}"


def _best(found: Iterable[Choice]) -> Choice | None:
    """Return the fastest; of those that are as fast within a second, the one with the fewest ranks."""
    return min(found, key=lambda choice: (round(choice.seconds), choice.ranks), default=None)


def choices(config: Config, count: int, seconds: Callable[[Config], float]) -> list[Choice]:
    """Return the ways to use this many nodes: numbers of ranks that the batches allow, and all engines that then fit.

    A run does not get fewer engines or ranks than it has, nor more engines than rollouts.
    """
    args, found = config.args, []
    gpus, width = equal_nodes.gpus_of_node(config), args.vllm_tensor_parallel_size
    for ranks in range(config.actor_ranks, count * gpus):
        if args.train_batch_size % ranks:
            continue
        engines = min(equal_nodes.most_engines(count, gpus, width, ranks), config.rollouts_per_step)
        if engines < args.vllm_num_engines:
            break
        changed = _change_layout(config, count, engines, ranks)
        if not list(check_batches(changed)) and not list(gpu_limits.problems(changed)):
            found.append(Choice(engines, ranks, seconds(changed)))
    return found


def _change_layout(config: Config, count: int, engines: int, ranks: int) -> Config:
    """Return the configuration with other numbers; micro-batches that were chosen for it are chosen anew."""
    changes = {"nodes": count, "gpus_per_node": equal_nodes.gpus_of_node(config), "vllm_num_engines": engines}
    changes |= {"actor_num_nodes": 1, "actor_num_gpus_per_node": ranks}
    changed = config.assume_flags(**changes)
    share = max(1, config.args.train_batch_size // ranks)
    for name in fitting.MICRO_BATCHES:
        if getattr(changed.args, name) > share:
            setattr(changed.args, name, fitting.largest_micro_batch(changed))
    return changed
