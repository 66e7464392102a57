"""The model of a run on many nodes, against formulas and a second simulation in small steps. No times are measured."""

import json
import math
import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.stack.problem import UserError
from grpo.stack.seats import Seats
from scripts.bench import __main__ as bench
from scripts.bench import cluster
from scripts.bench.cluster import ADAPTER, Rates, sync_seconds
from scripts.bench.parts.cluster_model import Quota, Transfer, judge, transfer_times


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 70), st.floats(1e3, 1e12), st.floats(1e3, 1e12), st.floats(1, 1e12))
def test_one_sender_serves_its_receivers_in_equal_parts(count: int, out_of: float, into: float, size: float) -> None:
    sent = [Transfer("a", f"b{number}", size) for number in range(count)]
    assert transfer_times(sent, out_of, into) == pytest.approx([max(count * size / out_of, size / into)] * count)


def test_a_shorter_transfer_leaves_its_share_to_the_others() -> None:
    sent = [Transfer("a", "b", 10.0), Transfer("a", "c", 30.0), Transfer("d", "c", 5.0)]
    # a halves 10 B/s until 2 s; c receives 5 from a and the rest of 10 from d until 1 s, and takes what d leaves.
    assert transfer_times(sent, 10.0, 10.0) == pytest.approx([2.0, 4.0, 1.0])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("wxyz"), st.integers(1, 40)), min_size=1, max_size=8)
)
def test_transfers_agree_with_a_simulation_in_small_steps(drawn) -> None:
    """Shares are raised together in each step until a link of the transfer is full."""
    sent, step = [Transfer(*transfer) for transfer in drawn], 0.002
    left, done, now = [float(transfer.size) for transfer in sent], [0.0] * len(sent), 0.0
    while any(left):
        rates = [0.0] * len(sent)
        growing = {number for number, size in enumerate(left) if size}
        while growing:
            used: defaultdict[str, float] = defaultdict(float)
            for number, rate in enumerate(rates):
                used[sent[number].sender] += rate
                used[sent[number].receiver] += rate
            full = {node for node in used if used[node] >= 10.0 - 1e-6}
            growing = {number for number in growing if not {sent[number].sender, sent[number].receiver} & full}
            users = Counter(node for number in growing for node in (sent[number].sender, sent[number].receiver))
            more = min(((10.0 - used[node]) / users[node] for node in users), default=0.0)
            for number in growing:
                rates[number] += more
        now += step
        for number, rate in enumerate(rates):
            if left[number]:
                left[number] = max(0.0, left[number] - rate * step)
                done[number] = now
    assert transfer_times(sent, 10.0, 10.0) == pytest.approx(done, abs=step * (len(sent) + 1))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("on_nodes", [(4,), (4, 4), (4,) * 16, (3, 1)])
def test_a_sync_is_the_senders_part_the_network_and_the_copies_of_a_node(on_nodes, workers: int) -> None:
    places = Seats("home", tuple(f"n{node}" for node, count in enumerate(on_nodes) for _ in range(count)), ("home",))
    network, copy = 2e9, 0.01
    rates = Rates(network, copy)
    # A worker of two copies half of what is split, A of q, k, v and B of o, and all of the rest.
    split = {"q_proj": (2880, 4096), "k_proj": (2880, 512), "v_proj": (2880, 512), "o_proj": (2880, 4096)}
    whole = sum(sum(widths) for widths in split.values())
    halves = 4096 + 512 + 512 + 4096
    worker = 1 if workers == 1 else (whole - halves / 2) / whole
    copies = max(on_nodes) * workers * worker
    ours = 1.5 * copy + len(on_nodes) * ADAPTER / network + copies * copy
    assert sync_seconds(places, workers, rates, is_once=True) == pytest.approx(ours)
    stock = 1.5 * copy + sum(on_nodes) * ADAPTER / network + copies * copy
    if len(set(on_nodes)) == 1:  # otherwise the node with fewer engines is done earlier
        assert sync_seconds(places, workers, rates, is_once=False) == pytest.approx(stock)
    assert sync_seconds(places, workers, rates, is_once=False) >= sync_seconds(places, workers, rates, is_once=True)


def test_engines_beside_the_sender_need_no_network() -> None:
    places = Seats("home", ("home",) * 3, ("home",))
    assert cluster.transfers(places, is_once=True) == cluster.transfers(places, is_once=False) == []
    assert sync_seconds(places, 1, Rates(1.0, 1.0), True) == pytest.approx(1.5 + 3)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 50))
def test_a_quota_alone_admits_one_window_after_the_other(samples: int, quota: int, window: int) -> None:
    found = judge([[0.0] * samples], Quota(quota, window, 0.5), concurrency=samples)
    assert (found.calls, found.refused) == (samples, 0)
    assert found.seconds == pytest.approx((math.ceil(samples / quota) - 1) * window + 0.5)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 300), st.integers(1, 40))
def test_concurrency_alone_admits_one_group_after_the_other(samples: int, concurrency: int) -> None:
    found = judge([[0.0] * samples], Quota(samples, 1e6, 3.0), concurrency)
    assert found.seconds == pytest.approx(math.ceil(samples / concurrency) * 3.0)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 8), st.integers(0, 1000))
def test_no_window_has_more_calls_than_the_quota_and_no_sample_is_lost(samples, quota, concurrency, seed) -> None:
    """The latest start of each sample by a plain rule: as early as the calls before it allow."""
    arrivals = sorted(random.Random(seed).uniform(0, 20) for _ in range(samples))
    found = judge([arrivals], Quota(quota, 5.0, 1.5), concurrency)
    starts: list[float] = []
    for number, arrival in enumerate(arrivals):
        after_quota = starts[number - quota] + 5.0 if number >= quota else 0.0
        after_reply = starts[number - concurrency] + 1.5 if number >= concurrency else 0.0
        starts.append(max(arrival, after_quota, after_reply))
    assert found.calls == samples and found.seconds == pytest.approx(starts[-1] + 1.5)


@pytest.mark.parametrize("nodes", [1, 2, 4, 16])
def test_with_limits_on_each_node_all_but_one_are_refused_once_a_window(nodes: int) -> None:
    quota, of_node = 10, 40
    found = judge([[0.0] * of_node for _ in range(nodes)], Quota(quota, 60.0, 1.0), concurrency=1000)
    # The first node uses up the quota of 4 windows, then the second, ...; those that have samples left ask in each.
    refused = of_node // quota * sum(range(nodes))
    assert (found.refused, found.calls) == (refused, nodes * of_node + refused)
    assert found.seconds == pytest.approx((nodes * of_node // quota - 1) * 60.0 + 1.0)


def test_the_benchmark_agrees_with_the_places_of_the_plan(capsys) -> None:
    assert bench.main(["cluster", "--json", "--copy-megabytes", "1", "--memory", "20"]) == 0
    report = json.loads(capsys.readouterr().out)
    details = report["details"]
    assert details["64_engines"]["nodes"] == 17, "8 ranks, and 4 engines on each of 16 others"
    assert details["our_sync_network_mb"] == pytest.approx(16 * ADAPTER / 1e6)
    assert details["stock_sync_network_mb"] == pytest.approx(64 * ADAPTER / 1e6)
    assert report["stock"] == pytest.approx(details["64_engines"]["stock_s"], abs=1e-3)
    assert report["ratio"] == pytest.approx(report["stock"] / report["ours"])
    samples = 64 * 8
    assert details["samples_mb"] == pytest.approx(samples * 4096 * 32 / 1e6)
    assert details["samples_s"] == pytest.approx(samples * 4096 * 32 / 1e9)
    # 120 calls in the first minute, of which some begin while the engines sample; then 120 in each further one
    assert 3 * 60 < details["sampling_s"] + details["judge_after_sampling_s"] < 5 * 60
    assert details["judge_rpm_without_waiting"] == pytest.approx(samples / (8 * 4096 / 1000) * 60)


def test_measured_points_are_compared_with_the_model(tmp_path, capsys) -> None:
    def sync(engines: int, seconds: float) -> dict:
        copies = cluster.traffic(engines, 1)
        return {"name": "sync", "ours": seconds, "details": {"one_copy_s": 0.01, "ours_in_copies_of_traffic": copies}}

    judged = {"samples": 64, "quota": 16, "window_s": 5.0, "latency_s": 0.2, "concurrency": 32}
    reports = [
        sync(2, 0.4),
        sync(1, 0.125),
        {"name": "judge", "details": judged | {"ours_longest_s": 15.3, "ours_calls": 64}},
    ]
    files = [tmp_path / str(number) for number in range(3)]
    for file, report in zip(files, reports, strict=True):
        file.write_text(json.dumps(report))
    words = ["cluster", "--json", "--copy-megabytes", "1", "--engines", "2", "--engine-gpus", "1"]
    words += ["--measured", *map(str, files)]
    assert bench.main(words) == 0
    details = json.loads(capsys.readouterr().out)["details"]
    assert (details["sync_2_measured_s"], details["sync_2_model_s"]) == (0.4, pytest.approx(0.125 / 2.5 * 3.5))
    assert details["2_engines"]["ours_s"] == pytest.approx(ADAPTER / 1e9 + 0.05 * (1.5 + 2), abs=1e-3)
    assert details["judge_model_s"] == pytest.approx(15.2) and details["judge_measured_s"] == 15.3
    assert details["judge_model_calls"] == 64


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engines", "0"], "--engines: out of range"),
        (["--network", "-1"], "--network: out of range"),
        (["--engine-gpus", "9"], "--engine-gpus: out of range"),
        (["--measured", "absent.json"], "absent.json"),
    ],
)
def test_wrong_sizes_are_refused(words, message, capsys) -> None:
    assert bench.main(["cluster", "--copy-megabytes", "1", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_report_of_another_benchmark_is_refused(tmp_path) -> None:
    (tmp_path / "grade.json").write_text('{"name": "grade"}')
    with pytest.raises(UserError, match="is of bench grade"):
        cluster._read(tmp_path / "grade.json")
