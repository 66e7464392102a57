"""Killed at any instant, the next call finishes or rolls back."""

import random
import signal
import subprocess
import sys
import time

import pytest


@pytest.mark.parametrize("killed", ["apply", "revert"])
def test_killed_before_every_write(world, before, after, look, killed):
    """SIGKILL just before write operation 0, 1, 2... of a real process, until it gets through."""
    start = "revert" if killed == "apply" else "apply"
    assert world.call(start) == 0
    bring_back = world.keep()
    seen = set()
    for number in range(300):
        bring_back()
        process = world.drive("kill", number, killed)
        process.communicate(timeout=60)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
        tree = look(world.target)
        seen.add(tuple(sorted(tree.items())))
        for path, text in tree.items():  # every file is the old one or the new one
            assert text in (before.get(f"openrlhf/{path}"), after.get(f"openrlhf/{path}"))
        following = ("apply", "revert")[number % 2]  # what is left is the same for several numbers
        assert world.call(following) == 0
        assert look(world.site) == (after if following == "apply" else before), number
        assert (world.target / "hooks").exists() == (following == "apply")
    else:
        pytest.fail("the process never got through")
    assert number > 15
    assert len(seen) == 6  # before, after, and the mixtures between the five renames and removals


def test_killed_at_random_instants(world, after, look):
    rng = random.Random(0)
    began = time.monotonic()
    assert world.run("apply").returncode == 0
    whole = time.monotonic() - began
    kills = 0
    for number in range(12):
        assert world.call("revert") == 0
        command = [sys.executable, "-P", "-m", "patches", "apply", "--target", str(world.target)]
        process = subprocess.Popen(command, env=world.env(), stdout=subprocess.DEVNULL)
        time.sleep(rng.uniform(0, whole * number / 12))  # the first is killed at once
        process.kill()
        kills += process.wait() == -signal.SIGKILL
        assert world.call("apply") == 0
        assert look(world.site) == after
    assert kills > 0
