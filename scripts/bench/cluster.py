"""A run on many nodes, on paper: a sync, the judge's limits, and the traffic of samples.

Nothing is started. Places are those of `./train_grpo.sh --plan`. The network is simulated: a node sends and receives at
`--network`, and transfers share that fairly. `stock` sends the adapter to each engine separately, `ours` to each node
once. Then the engines of a node copy it within their memory. The judge's server is simulated with its quota. Limits in
one place for the whole cluster are compared with limits on each node.

`--measured` takes reports of `bench sync --json` and `bench judge --json`. The smallest report of `sync` gives the
seconds of a copy in memory; the others, and `judge`, are compared with what the simulation says of them.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.launch.equal_nodes import fewest_nodes, place
from grpo.launch.plan import TOKEN_BYTES
from grpo.stack.machine import GB
from grpo.stack.problem import UserError
from grpo.stack.seats import Seats
from scripts.bench.harness import Result
from scripts.bench.machine import Copy
from scripts.bench.parts.cluster_model import Judged, Quota, Transfer, judge, transfer_times
from scripts.bench.sync import traffic

ADAPTER = 95_551_488  # bytes: attention of gpt-oss-120b, rank 64, bf16
_OWN_COPIES = traffic(0, 1)  # of the sender: the put, and the sum over everything
_COUNTS = ("engines", "engine_gpus", "actor_gpus", "gpus_per_node", "samples", "tokens", "rpm", "concurrency")
_RATES = ("network", "engine_tokens", "judge_latency")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engines", type=int, default=64, help="engines of the largest cluster (default: 64)")
    parser.add_argument("--engine-gpus", type=int, default=2, help="GPUs of an engine (default: 2)")
    parser.add_argument("--actor-gpus", type=int, default=8, help="ranks of the actor (default: 8)")
    parser.add_argument("--gpus-per-node", type=int, default=8, help="GPUs of a node (default: 8)")
    parser.add_argument(
        "--network", type=float, default=1.0, help="GB/s out of and into a node, as Ray moves objects (default: 1)"
    )
    parser.add_argument("--memory", type=float, help="GB/s of copies in a node's memory (default: this machine's)")
    parser.add_argument("--samples", type=int, default=8, help="samples of each engine in a step (default: 8)")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of a sample (default: 4096)")
    parser.add_argument(
        "--engine-tokens", type=float, default=1000.0, help="tokens per second of an engine (default: 1000)"
    )
    parser.add_argument("--rpm", type=int, default=120, help="the judge's calls per minute (default: 120)")
    parser.add_argument("--concurrency", type=int, default=32, help="its calls at once (default: 32)")
    parser.add_argument("--judge-latency", type=float, default=10.0, help="seconds of a reply (default: 10)")
    parser.add_argument("--measured", type=Path, nargs="*", default=[], help="reports of bench sync and bench judge")


@dataclass(frozen=True)
class Rates:
    """Bytes per second between nodes; seconds of one copy of the adapter in memory."""

    network: float
    of_copy: float


def run(options: argparse.Namespace, copy: Copy) -> Result:
    wrong = [name for name in (*_COUNTS, *_RATES) if not getattr(options, name) > 0]
    wrong += ["memory"] if options.memory is not None and not options.memory > 0 else []
    if wrong or options.engine_gpus > options.gpus_per_node:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in wrong) or "--engine-gpus"
        raise UserError(f"{names}: out of range", "give more than 0, and an engine no more GPUs than a node has")
    reports = [_read(file) for file in options.measured]
    rates = Rates(options.network * GB, _of_copy(options, copy, reports))
    places = {engines: _places(options, engines) for engines in _sizes(options.engines)}
    largest = places[options.engines]
    scaling = {
        f"{engines}_engines": {
            "nodes": len(found.nodes),
            "stock_s": round(sync_seconds(found, options.engine_gpus, rates, is_once=False), 4),
            "ours_s": round(sync_seconds(found, options.engine_gpus, rates, is_once=True), 4),
        }
        for engines, found in places.items()
    }
    return Result(
        what=f"seconds to bring {ADAPTER / 1e6:.1f} MB of adapter to {options.engines} engines of "
        f"{options.engine_gpus} GPUs on {len(largest.nodes)} nodes, calculated",
        unit="s",
        stock=sync_seconds(largest, options.engine_gpus, rates, is_once=False),
        ours=sync_seconds(largest, options.engine_gpus, rates, is_once=True),
        higher_is_better=False,
        details={
            "stock_sync_network_mb": sum(transfer.size for transfer in transfers(largest, is_once=False)) / 1e6,
            "our_sync_network_mb": sum(transfer.size for transfer in transfers(largest, is_once=True)) / 1e6,
            **scaling,
            **_judged(options, largest),
            **_samples(options, largest),
            **dict(_compared(reports)),
        },
        extrapolation=(
            f"assumes {options.network:g} GB/s out of and into each node, and {rates.of_copy:.3g} s a copy in memory",
            "assumes that all nodes take the adapter from its sender; Ray may also pass it on from node to node",
            f"assumes {options.samples} samples of {options.tokens} tokens at {options.engine_tokens:g} tokens/s from "
            f"each engine, {TOKEN_BYTES} bytes per token, and replies of the judge in {options.judge_latency:g} s",
        ),
    )


def _sizes(most: int) -> list[int]:
    """Return powers of two up to `most`, and `most`."""
    return [*(2**power for power in range(most.bit_length()) if 2**power < most), most]


def _places(options: argparse.Namespace, engines: int) -> Seats:
    shape = (engines, options.engine_gpus, options.actor_gpus)
    count = fewest_nodes(options.gpus_per_node, *shape)
    places = place(count, options.gpus_per_node, *shape)
    assert places is not None  # `count` nodes have room
    return places


def transfers(places: Seats, is_once: bool) -> list[Transfer]:
    """Return what a sync sends over the network: to each node once, or to each engine."""
    sender = places.ranks[0]
    receivers = [node for node in places.engines if node != sender]
    return [Transfer(sender, node, ADAPTER) for node in (dict.fromkeys(receivers) if is_once else receivers)]


def sync_seconds(places: Seats, workers: int, rates: Rates, is_once: bool) -> float:
    """Return the seconds of a sync, from the sender's put to the last worker's copy."""
    sent = transfers(places, is_once)
    arrived = dict.fromkeys(places.engines, 0.0)
    for transfer, time in zip(sent, transfer_times(sent, rates.network, rates.network), strict=True):
        arrived[transfer.receiver] = max(arrived[transfer.receiver], time)
    copies = {node: traffic(places.engines.count(node), workers) - _OWN_COPIES for node in arrived}
    return _OWN_COPIES * rates.of_copy + max(arrived[node] + copies[node] * rates.of_copy for node in arrived)


def sampling_seconds(options: argparse.Namespace) -> float:
    """Return how long the engines sample in a step."""
    return float(options.samples * options.tokens / options.engine_tokens)


def _judged(options: argparse.Namespace, places: Seats) -> dict[str, float]:
    """Judge the samples of a step, which are finished at even distances while the engines sample."""
    lasts = sampling_seconds(options)
    finished = [lasts * (number + 1) / options.samples for number in range(options.samples)]
    by_node: dict[str, list[float]] = {}
    for node in places.engines:
        by_node.setdefault(node, []).extend(finished)
    quota = Quota(options.rpm, 60.0, options.judge_latency)
    one = judge([sorted(time for times in by_node.values() for time in times)], quota, options.concurrency)
    each = judge(list(by_node.values()), quota, options.concurrency)
    return {
        "sampling_s": lasts,
        "judge_after_sampling_s": one.seconds - lasts,
        "judge_calls": one.calls,
        "judge_refused": one.refused,
        "judge_refused_with_limits_on_each_node": each.refused,
        "judge_rpm_without_waiting": 60 * len(places.engines) * options.samples / lasts,
        "judge_concurrency_without_waiting": len(places.engines) * options.samples / lasts * options.judge_latency,
    }


def _samples(options: argparse.Namespace, places: Seats) -> dict[str, float]:
    """Bring the samples of a step to the launcher's node, and from there to the ranks."""
    of_engine = options.samples * options.tokens * TOKEN_BYTES
    network = options.network * GB
    there = [Transfer(node, places.home, of_engine) for node in places.engines if node != places.home]
    of_rank = len(places.engines) * of_engine / len(places.ranks)
    back = [Transfer(places.home, node, of_rank) for node in places.ranks if node != places.home]
    return {
        "samples_mb": len(places.engines) * of_engine / 1e6,
        "samples_over_the_network_mb": sum(transfer.size for transfer in (*there, *back)) / 1e6,
        "samples_s": sum(max(transfer_times(part, network, network), default=0.0) for part in (there, back)),
    }


def _read(file: Path) -> dict[str, Any]:
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
        if report["name"] in ("sync", "judge"):
            return dict(report)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"--measured {file}: {error}", "give a file of bench sync --json or bench judge --json"
        ) from error
    raise UserError(f"--measured {file} is of bench {report['name']}", "give one of bench sync or bench judge")


def _of_copy(options: argparse.Namespace, copy: Copy, reports: Sequence[dict[str, Any]]) -> float:
    """Return the seconds of a copy of the adapter: from `--memory`, a measured sync, or this machine's copies."""
    syncs = _syncs(reports)
    if options.memory is None and syncs:
        return float(syncs[0]["ours"] / _copies(syncs[0]))
    return float(2 * ADAPTER / ((options.memory or copy.best) * GB))


def _syncs(reports: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the reports of `sync`, the smallest first."""
    return sorted((report for report in reports if report["name"] == "sync"), key=_copies)


def _copies(report: dict[str, Any]) -> float:
    return float(report["details"]["ours_in_copies_of_traffic"])


def _compared(reports: Sequence[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yield what was measured and what the model says of it."""
    syncs = _syncs(reports)
    for number, report in enumerate(syncs[1:], 2):
        yield f"sync_{number}_measured_s", report["ours"]
        yield f"sync_{number}_model_s", _copies(report) * syncs[0]["ours"] / _copies(syncs[0])
    for report in reports:
        if report["name"] == "judge":
            found = judged_as(report)
            yield "judge_measured_s", report["details"]["ours_longest_s"]
            yield "judge_model_s", found.seconds
            yield "judge_measured_calls", report["details"]["ours_calls"]
            yield "judge_model_calls", found.calls


def judged_as(report: dict[str, Any]) -> Judged:
    """Return what the model says of a report of `bench judge`: all samples ask at once."""
    details = report["details"]
    quota = Quota(details["quota"], details["window_s"], details["latency_s"])
    return judge([[0.0] * details["samples"]], quota, details["concurrency"])
