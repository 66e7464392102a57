"""Judging one rollout under a quota: google-genai's own retries, and ours, for samples of several processes at once.

A local server stands in for Gemini (`reward.stand_in`). It counts requests in a sliding window of `--window` seconds,
which stands for a minute, and answers the rest with 429 and a retry delay. The stock client makes three
attempts per sample, with delays shortened like the minute. Then the server goes down for a while and recovers.
`queued_s` is the longest time that a sample waited for a thread (see `judge_worker`); its deadline begins after that.

The bias of each fallback policy is computed with drawn qualities. It compares a judge that fails in one sample of ten
with one that never fails, on the same samples; the advantage is Dr. GRPO's. `pays` is what a failure adds to the
advantage of the affected sample, right or wrong. `favours` is `pays` minus what the failure adds to judged samples of
the same kind in the group. `rms` is the error over all samples.
"""

import argparse
import math
import os
import random
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import torch

from grpo.batch.advantages import shaped
from grpo.batch.rewards import complete
from grpo.rollout.rows import Sample
from grpo.stack.problem import UserError
from grpo.stack.upstream.arguments import Arguments
from reward.chain import Chain, ChainError
from reward.gemini import Client
from reward.judge import Judge, Verdict
from reward.settings import FALLBACKS, STAND_IN_KEY, JudgeSettings
from reward.shared_state import SharedState
from reward.stand_in import Fault, Quota, StandIn
from scripts.bench.harness import Result
from scripts.bench.machine import Copy
from scripts.bench.parts.judge_worker import CONCURRENCY, MINUTE, MODEL, chain_settings
from scripts.bench.parts.ranks import run_ranks

DOWN_THREADS = 8
GROUP, GROUPS, FAILURE_RATE, WEIGHTS = 8, 1000, 0.1, (0.6, 0.4)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=int, default=64, help="samples of the rollout (default: 64)")
    parser.add_argument("--processes", type=int, default=2, help="processes that judge them (default: 2)")
    parser.add_argument("--quota", type=int, default=16, help="requests per window (default: 16)")
    parser.add_argument("--assumed", type=int, help="the quota that is configured (default: the real one)")
    parser.add_argument(
        "--window", type=float, default=5.0, help="seconds of a window, in place of a minute (default: 5)"
    )
    parser.add_argument("--latency", type=float, default=0.2, help="seconds per reply (default: 0.2)")
    parser.add_argument("--deadline", type=float, default=20.0, help="seconds per sample (default: 20)")


def run(options: argparse.Namespace, copy: Copy) -> Result:
    del copy
    if min(options.samples, options.processes, options.quota) < 1 or options.samples % options.processes:
        raise UserError(
            "an option is out of range",
            "--samples, --processes and --quota must be at least 1, and --samples a multiple of --processes",
        )
    if min(options.window, options.deadline) <= 0:
        raise UserError("an option is out of range", "--window and --deadline must be above 0")
    ways = {ours: _judge_rollout(options, ours) for ours in (False, True)}
    if not min(way["judged"] for way in ways.values()):
        raise ValueError("a way judged no sample: give a larger --quota or --deadline")
    details: dict[str, Any] = {
        "samples": options.samples,
        "quota": options.quota,
        "window_s": options.window,
        "latency_s": options.latency,
        "deadline_s": options.deadline,
        "concurrency": CONCURRENCY,
    }
    for name, way in (("stock", ways[False]), ("ours", ways[True])):
        details |= {f"{name}_{key}": value for key, value in way.items()}
    details |= _recover(options.window) | _policy_bias()
    return Result(
        what=f"calls for each judged sample, {options.samples} samples at once from {options.processes} processes "
        f"under a quota of {options.quota} in {options.window:g} s, against a local stand-in for Gemini",
        unit="calls",
        stock=ways[False]["calls"] / ways[False]["judged"],
        ours=ways[True]["calls"] / ways[True]["judged"],
        higher_is_better=False,
        details=details,
        extrapolation=(
            "the real quota is a minute's: the same run takes "
            f"{(math.ceil(options.samples / options.quota) - 1):.0f} minutes and the time of a reply there",
        ),
    )


def _judge_rollout(options: argparse.Namespace, is_ours: bool) -> dict[str, float]:
    """Let one way judge the samples; return the measurements."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-judge-") as folder,
        StandIn([MODEL], Quota(options.quota, options.window), latency=options.latency) as server,
    ):
        job = {
            "ours": is_ours,
            "url": server.url,
            "folder": folder,
            "samples": options.samples // options.processes,
            "quota": options.assumed or options.quota,
            "window": options.window,
            "deadline": options.deadline,
        }
        ranks = run_ranks("judge_worker", options.processes, job)
        requests = server.requests
    seconds = [second for rank in ranks for second in rank["seconds"]]
    judged = sum(sum(rank["judged"]) for rank in ranks)
    accepted = [request.time for request in requests if request.status == 200]
    least = (math.ceil(len(accepted) / options.quota) - 1) * options.window
    span = max(accepted, default=0.0) - min(accepted, default=0.0)
    results = {
        "judged": judged,
        "calls": len(requests),
        "judged_share": judged / options.samples,
        # Every call beyond the one that each judged sample needs.
        "wasted_share": 1 - judged / len(requests),
        "longest_s": max(seconds),
        "queued_s": max(second for rank in ranks for second in rank["queued"]),
        "past_deadline": sum(second > options.deadline for second in seconds),
    }
    if least > 0:
        # The least time in which the quota admits these calls, over the time that they took.
        results["quota_used"] = least / span
    return results


def _recover(window: float) -> dict[str, float]:
    """Take the server down under load, bring it back, and count the calls of each phase."""
    down = threading.Event()
    down.set()
    fault = Fault("status", 503, "down")
    settings = chain_settings(window / 10, window, call_timeout=window / 10, tries=1)
    with (
        tempfile.TemporaryDirectory(prefix="bench-judge-") as folder,
        StandIn([MODEL], faults=lambda number, model: fault if down.is_set() else None) as server,
    ):
        chain = Chain(settings, SharedState(Path(folder, "judge.sqlite")), Client(STAND_IN_KEY, server.url))
        back = time.monotonic() + window
        timer = threading.Timer(window, down.clear)
        timer.start()

        def ask(number: int) -> None:
            while time.monotonic() < back + window:
                try:
                    chain.ask(f"question {number}")
                except ChainError:
                    continue

        with ThreadPoolExecutor(DOWN_THREADS) as pool:
            list(pool.map(ask, range(DOWN_THREADS)))
        timer.join()
        while_down = [request for request in server.requests if request.time < back]
        after = [request.status for request in server.requests if request.time >= back]
    if 200 not in after:
        raise ValueError("the server was back, and the judge did not notice within a window: give a larger --window")
    return {
        "calls_while_down": len(while_down),
        # 1: the first probe after the server was back closed the breaker.
        "calls_until_recovery": after.index(200) + 1,
        "failed_calls_after_recovery": sum(status != 200 for status in after),
        "answered_calls_after_recovery": sum(status == 200 for status in after),
    }


def _policy_bias() -> dict[str, float]:
    """Compare the advantages under each policy with those under a judge that never fails."""
    rng = random.Random(0)
    drawn = []
    for _ in range(GROUPS):
        rate = rng.betavariate(1, 1)  # problems differ in difficulty
        for _ in range(GROUP):
            right = float(rng.random() < rate)
            quality = rng.betavariate(6, 2) if right else rng.betavariate(2, 3)
            drawn.append((right, quality, rng.random() < FAILURE_RATE))
    is_right = torch.tensor([sample[0] for sample in drawn]) == 1
    failed = torch.tensor([sample[2] for sample in drawn])
    beside = failed.view(-1, GROUP).any(-1).repeat_interleave(GROUP) & ~failed
    truth = _advantages([(right, quality, False) for right, quality, _ in drawn], "correctness")
    bias = {}
    for policy in FALLBACKS:
        error = _advantages(drawn, policy) - truth
        for name, chosen in (("right", is_right), ("wrong", ~is_right)):
            bias[f"{policy}_pays_{name}"] = error[failed & chosen].mean().item()
            bias[f"{policy}_favours_{name}"] = (error[failed & chosen].mean() - error[beside & chosen].mean()).item()
        bias[f"{policy}_rms"] = error.square().mean().sqrt().item()
    return bias


def _advantages(drawn: list[tuple[float, float, bool]], policy: str) -> torch.Tensor:
    """Return Dr. GRPO's advantages of (correct, quality, failed), by the code that a run uses; ``[len(drawn)]``."""
    settings = JudgeSettings(chain_settings(MINUTE, MINUTE, call_timeout=MINUTE), *WEIGHTS, policy, True)
    with tempfile.TemporaryDirectory(prefix="bench-judge-") as folder:
        judge = Judge(settings, SharedState(Path(folder, "judge.sqlite")), chain=None)  # type: ignore[arg-type]
        samples = []
        for correct, quality, failed in drawn:
            verdict = Verdict(failed=1.0) if failed else Verdict(quality=quality, calls=1.0)
            reward = torch.tensor([judge.reward(correct, verdict)])
            info = {"correct": torch.tensor([correct]), "judge_failed": torch.tensor([verdict.failed])}
            samples.append(SimpleNamespace(rewards=reward, scores=info["correct"], info=info))
        with mock.patch.dict(os.environ, {"GRPO_JUDGE_FALLBACK": policy}):
            complete(cast(list[Sample], samples), GROUP)
    rewards = torch.cat([sample.rewards for sample in samples]).double().view(-1, GROUP)
    args = SimpleNamespace(advantage_estimator="dr_grpo", reward_clip_range=(-10, 10))
    return shaped(rewards, rewards.isfinite(), cast(Arguments, args))[0].view(-1).float()
