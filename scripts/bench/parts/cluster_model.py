"""A run on many nodes, on paper: transfers over a network, and a judge's quota. Times are seconds, sizes bytes."""

import heapq
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

# A transfer that takes less is over: rounding leaves this much of it.
_DONE = 1e-9


@dataclass(frozen=True)
class Transfer:
    """Bytes from one node to another."""

    sender: str
    receiver: str
    size: float


def transfer_times(transfers: Sequence[Transfer], out_of: float, into: float) -> list[float]:
    """Return when each of these transfers is done, if all begin at 0.

    A node sends at most `out_of` and receives at most `into` bytes per second. Transfers share both fairly: nobody gets
    more while somebody with less could.
    """
    left = {number: transfer.size for number, transfer in enumerate(transfers)}
    done, now = [0.0] * len(transfers), 0.0
    while left:
        rates = _fair_rates({number: transfers[number] for number in left}, out_of, into)
        step = min(left[number] / rates[number] for number in left)
        now += step
        for number in list(left):
            left[number] -= rates[number] * step
            if left[number] <= _DONE * transfers[number].size:
                done[number] = now
                del left[number]
    return done


def _fair_rates(running: dict[int, Transfer], out_of: float, into: float) -> dict[int, float]:
    """Fill the most crowded link first; its transfers get equal shares of it."""
    rates: dict[int, float] = {}
    free: dict[tuple[str, str], float] = {}
    for transfer in running.values():
        free["out", transfer.sender], free["in", transfer.receiver] = out_of, into
    while len(rates) < len(running):
        users = Counter(
            link
            for number, transfer in running.items()
            if number not in rates
            for link in (("out", transfer.sender), ("in", transfer.receiver))
        )
        crowded = min(users, key=lambda link: free[link] / users[link])
        share = free[crowded] / users[crowded]
        for number, transfer in running.items():
            links = ("out", transfer.sender), ("in", transfer.receiver)
            if number not in rates and crowded in links:
                rates[number] = share
                for link in links:
                    free[link] -= share
    return rates


@dataclass(frozen=True)
class Quota:
    """What a judge's server admits: calls in any `window` seconds; a reply takes `latency`."""

    calls: int
    window: float
    latency: float


@dataclass(frozen=True)
class Judged:
    """Calls that were sent and those of them that were refused, and when the last sample was judged."""

    calls: int
    refused: int
    seconds: float


def judge(arrivals: Sequence[Sequence[float]], quota: Quota, concurrency: int) -> Judged:
    """Judge samples that arrive at these times at each keeper of limits.

    Every keeper admits what it takes for the whole quota, and at most `concurrency` calls at once. One keeper is one
    limit for the whole cluster. The server refuses at once what is above its quota, and names the time from which it
    admits calls again. The keeper sends nothing until then, so these are the fewest refusals.
    """
    sent: list[deque[float]] = [deque() for _ in arrivals]
    accepted: deque[float] = deque()
    running: list[list[float]] = [[] for _ in arrivals]
    paused = [0.0 for _ in arrivals]
    events = [(time, keeper) for keeper, times in enumerate(arrivals) for time in times]
    heapq.heapify(events)
    calls = refused = 0
    last = 0.0
    while events:
        now, keeper = heapq.heappop(events)
        own, busy = sent[keeper], running[keeper]
        while busy and busy[0] <= now:
            heapq.heappop(busy)
        later = max(_free_at(own, quota, now), busy[0] if len(busy) >= concurrency else now, paused[keeper])
        if later > now:
            heapq.heappush(events, (later, keeper))
            continue
        calls += 1
        own.append(now)
        if (again := _free_at(accepted, quota, now)) > now:
            refused += 1
            paused[keeper] = again
            heapq.heappush(events, (again, keeper))
            continue
        accepted.append(now)
        heapq.heappush(busy, now + quota.latency)
        last = max(last, now + quota.latency)
    return Judged(calls, refused, last)


def _free_at(times: deque[float], quota: Quota, now: float) -> float:
    """Return when one more call fits into the window; forgets calls that have left it."""
    while times and times[0] <= now - quota.window:
        times.popleft()
    return now if len(times) < quota.calls else times[len(times) - quota.calls] + quota.window
