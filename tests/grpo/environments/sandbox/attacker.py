"""Runs the code of an attack in a sandbox."""

import asyncio
from pathlib import Path

from grpo.environments.sandbox.confinement import Limits
from grpo.environments.sandbox.sandbox import GuestDied, Sandbox

ROOT = Path(__file__).parents[4]
SMALL = Limits(memory_mb=256, cpu_seconds=2, output_chars=1000)


def attack(code, seconds=400.0, then="1 + 1", limits=SMALL):
    """Run code in a sandbox, then other code; return both texts, or None for what did not return."""

    async def run_both():
        sandbox = await Sandbox.start(limits)
        texts = []
        for each in (code, then):
            try:
                async with asyncio.timeout(seconds):
                    texts.append((await sandbox.run(each)).text)
            except (GuestDied, TimeoutError):
                texts.append(None)
                break
        sandbox.close()
        return texts

    return asyncio.run(run_both())
