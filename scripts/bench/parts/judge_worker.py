"""One process of the benchmark `judge`: judges its samples as OpenRLHF does, and reports when each was done.

OpenRLHF calls the reward function by `asyncio.to_thread`. The event loop has a few threads more than the machine has
cores, and the other samples queue for them before their deadline begins. Ours has a thread for each sample.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from grpo.rollout import reward_threads
from reward import judge
from reward.chain import connect
from reward.settings import STAND_IN_KEY, ChainSettings, JudgeSettings
from reward.shared_state import SharedState
from scripts.bench.parts.ranks import job_of_this_rank, report

MODEL = "gemini-stand-in"
ATTEMPTS, MINUTE, CONCURRENCY = 3, 60.0, 32


def chain_settings(
    deadline: float, window: float, *, call_timeout: float, quota: int = 120, tries: int = ATTEMPTS
) -> ChainSettings:
    """Return the settings of a chain of the stand-in's model. Durations in seconds."""
    return ChainSettings((MODEL,), tries, deadline, call_timeout, quota, 1_000_000, CONCURRENCY, window=window)


def response(rank: str, number: int) -> str:
    """Return a unique response."""
    return f"{rank} + {number} = x\nso the answer is \\boxed{{{number}}}"


class Ours:
    """The judge of a run."""

    def __init__(self, job: dict[str, Any]) -> None:
        chain = chain_settings(job["deadline"], job["window"], call_timeout=job["deadline"] / 2, quota=job["quota"])
        state = SharedState(Path(job["folder"], "judge.sqlite"))
        settings = JudgeSettings(chain, 0.6, 0.4, "correctness", True)
        self._judge = judge.Judge(settings, state, connect(chain, state, None, job["url"]))

    def __call__(self, text: str) -> bool:
        return not self._judge.judge("a problem", text, "7").failed


class Stock:
    """google-genai's client with its own retries."""

    def __init__(self, job: dict[str, Any]) -> None:
        from google import genai

        scale = job["window"] / MINUTE
        retries = genai.types.HttpRetryOptions(
            attempts=ATTEMPTS, initial_delay=scale, max_delay=MINUTE * scale, jitter=scale
        )
        options = genai.types.HttpOptions(
            base_url=job["url"],
            api_version="v1beta",
            retry_options=retries,
            timeout=round(1000 * job["deadline"]),
            client_args={"trust_env": False},  # no proxy between it and the stand-in
        )
        self._client = genai.Client(api_key=STAND_IN_KEY, vertexai=False, http_options=options)
        self._config = genai.types.GenerateContentConfig(
            system_instruction=judge.SYSTEM, response_mime_type="application/json", response_schema=judge.Scores
        )

    def __call__(self, text: str) -> bool:
        from google.genai import errors

        try:
            reply = self._client.models.generate_content(
                model=MODEL, contents=judge.request("a problem", text, "7"), config=self._config
            )
        except errors.APIError:
            return False
        return reply.parsed is not None


def main() -> None:
    """Wait for the other processes, judge all samples at once, report."""
    job, rank = job_of_this_rank(), os.environ["RANK"]
    way = Ours(job) if job["ours"] else Stock(job)
    ready = Path(job["folder"])
    (ready / f"ready-{rank}").touch()
    while len(list(ready.glob("ready-*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)

    begun = time.monotonic()

    def one(number: int) -> tuple[bool, float, float]:
        started = time.monotonic()
        return way(response(rank, number)), time.monotonic() - started, started - begun

    async def all_at_once() -> list[tuple[bool, float, float]]:
        if job["ours"]:
            reward_threads.provide()
        return await asyncio.gather(*(asyncio.to_thread(one, number) for number in range(job["samples"])))

    judged, seconds, queued = zip(*asyncio.run(all_at_once()), strict=True)
    report(judged=judged, seconds=seconds, queued=queued)


if __name__ == "__main__":
    main()
