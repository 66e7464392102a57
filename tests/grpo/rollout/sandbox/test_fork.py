"""A fork of a process that has sandboxes."""

import asyncio

from grpo.launch.checks.own_code import call_apart
from grpo.rollout.sandbox.confinement import Limits
from grpo.rollout.sandbox.sandbox import Sandbox


def compute_answer() -> str:
    async def ask() -> str:
        sandbox = await Sandbox.start(Limits())
        try:
            return (await sandbox.run("print(6 * 7)")).text.strip()
        finally:
            sandbox.close()

    return asyncio.run(ask())


def test_it_makes_sandboxes_of_its_own_and_leaves_its_parents():
    assert [compute_answer(), call_apart(compute_answer), compute_answer()] == ["42", "42", "42"]
