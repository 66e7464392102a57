"""Killed at any instant, the next call finishes or rolls back."""

import signal

import pytest


@pytest.mark.timeout(600)  # a hundred processes
@pytest.mark.parametrize("killed", ["apply", "revert"])
def test_killed_before_every_write(world, pristine_tree, patched_tree, look, killed):
    """SIGKILL just before write operation 0, 1, 2... of a real process, until it gets through."""
    start = "revert" if killed == "apply" else "apply"
    assert world.call(start) == 0
    bring_back = world.keep()
    seen = set()
    for number in range(300):
        bring_back()
        code, _, errors = world.drive("kill", number, killed).end()
        if code == 0:
            break
        assert code == -signal.SIGKILL, errors
        tree = look(world.target)
        seen.add(tuple(sorted(tree.items())))
        for path, text in tree.items():  # every file is the old one or the new one
            assert text in (pristine_tree.get(f"openrlhf/{path}"), patched_tree.get(f"openrlhf/{path}"))
        following = ("apply", "revert")[number % 2]  # what is left is the same for several numbers
        assert world.call(following) == 0
        assert look(world.site) == (patched_tree if following == "apply" else pristine_tree), number
        assert (world.target / "hooks").exists() == (following == "apply")
    else:
        pytest.fail("the process never got through")
    assert number > 15
    assert len(seen) == 6  # before, after, and the mixtures between the five renames and removals
