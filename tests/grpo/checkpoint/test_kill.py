"""A process that dies at any instant of a save leaves whole checkpoints, and the next save works."""

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from grpo.checkpoint import digests, saving
from grpo.run.run_files import saved_steps

KILLED = 9
# Every call that changes the disk, by the place where grpo.checkpoint.saving finds it.
CALLS = [
    (Path, "mkdir"),
    (Path, "rename"),
    (Path, "write_text"),
    (shutil, "rmtree"),
    *((os, name) for name in ("fsync", "unlink", "rmdir")),
]


def save(target: Path, content: str) -> None:
    """Replace a checkpoint by one whose two files have the same content, and remove the checkpoint of step 3."""

    def write(directory: Path) -> None:
        (directory / "adapter").mkdir()
        (directory / "adapter" / "a").write_text(content)
        (directory / "adapter" / "b").write_text(content)

    saving.replace(target, write)
    saving.remove(target.parent, {3} & set(saved_steps(target.parent)))


def save_in_process(target: Path, content: str, store: Path, die_after: int | None) -> int:
    """Save in a process that exits abruptly after so many changes of the disk; return its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
        left = [die_after]
        for owner, name in CALLS:
            setattr(owner, name, make_dying(getattr(owner, name), left))
        save(target, content)
        os._exit(0)
    except BaseException as error:
        print(error, file=sys.stderr)
        os._exit(1)


def make_dying(call, left: list[int | None]):
    def call_and_die(*arguments, **named):
        result = call(*arguments, **named)
        if left[0] is not None:
            left[0] -= 1
            if left[0] < 0:
                os._exit(KILLED)
        return result

    return call_and_die


def read_whole(target: Path) -> str | None:
    """The content of a checkpoint, or None if it is missing. Both files must have it, with matching digests."""
    if target.name not in [f"step_{step}" for step in saved_steps(target.parent)]:
        return None
    first, second = ((target / "adapter" / name).read_text() for name in "ab")
    assert first == second
    assert digests.is_sealed(target / "adapter") and digests.damage(target / "adapter") == {}
    return first


def test_leftovers_of_killed_saves_are_removed(tmp_path: Path) -> None:
    left = [".step_4.partial", ".step_5.old", ".step_6.old", ".step_7.removed", "step_5", "step_7"]
    for name in left:
        (tmp_path / name / "adapter").mkdir(parents=True)
    saving.remove(tmp_path, [7])
    # Step 6 still has its old content.
    assert sorted(path.name for path in tmp_path.iterdir()) == [".step_6.old", "step_5"]


@pytest.mark.parametrize("existing", [False, True])
def test_a_kill_at_any_instant(tmp_path: Path, existing: bool) -> None:
    codes, before = [], tmp_path / "before"
    for name in ("step_4", *(["step_5"] if existing else []), "step_3"):
        assert save_in_process(before / name, "old", tmp_path / f"store-{name}", None) == 0
    for die_after in range(60):
        checkpoints = tmp_path / f"{die_after}"
        target = checkpoints / "step_5"
        other = checkpoints / "step_4"
        shutil.copytree(before, checkpoints)
        codes.append(save_in_process(target, "new", tmp_path / f"store-{die_after}", die_after))
        assert read_whole(other) == "old"
        read_whole(checkpoints / "step_3")
        assert read_whole(target) in ("old", "new", None)
        if existing and read_whole(target) is None:  # between two renames, the old one is next to it
            assert (checkpoints / ".step_5.old" / "adapter" / "a").read_text() == "old"
        assert save_in_process(target, "third", tmp_path / f"store-{die_after}-third", None) == 0
        assert read_whole(target) == "third"
        assert sorted(path.name for path in checkpoints.iterdir()) == ["step_4", "step_5"]
        if codes[-1] == 0:
            break
    assert codes[-1] == 0 and set(codes[:-1]) == {KILLED}
    assert len(codes) > 10, "the kills came at few instants"
