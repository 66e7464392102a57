"""An installation with the patches of another release of this project."""

import shutil
from dataclasses import replace

import pytest

from patches.errors import Exit
from patches.series import folder

from .conftest import CHANGES, VERSION, write_series


@pytest.fixture(autouse=True)
def hide_package_index(monkeypatch):
    """No package index, and no pip that could reach one."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")


@pytest.fixture
def exchange_series(pristine_tree):
    """Exchanges the series for one that changes one patch and drops another; returns the files that it leaves."""

    def exchange():
        first, second, _ = CHANGES
        actor, loop = second.files["openrlhf/models/actor.py"], second.files["openrlhf/trainer/loop.py"]
        changed = actor[1].replace(b"EXTRA = 1", b"EXTRA = 2")
        files = {"openrlhf/models/actor.py": (actor[0], changed), "openrlhf/trainer/loop.py": loop}
        write_series(VERSION, [first, replace(second, files=files)])
        return pristine_tree | {path: new for path, (_, new) in (first.files | files).items()}

    return exchange


def test_upgrade_and_downgrade_work_offline(world, exchange_series, pristine_tree, patched_tree, look):
    assert world.call("apply") == Exit.OK
    upgraded = exchange_series()
    status = world.read_status()
    assert (status["state"], status["code"]) == ("drifted", Exit.DRIFTED) and "another release" in status["message"]
    assert world.run("apply").returncode == Exit.OK
    assert look(world.site) == upgraded and world.read_status()["state"] == "applied"
    write_series(VERSION, CHANGES)
    assert world.run("apply").returncode == Exit.OK
    assert look(world.site) == patched_tree
    exchange_series()
    assert world.run("revert").returncode == Exit.OK
    assert look(world.site) == pristine_tree


def test_a_hand_edit_on_another_release_is_shown_exactly_and_never_overwritten(world, exchange_series, look, tmp_path):
    assert world.call("apply") == Exit.OK
    file = world.target / "models" / "actor.py"
    file.write_bytes(file.read_bytes() + b"# mine\n")
    edited = look(world.site)
    upgraded = exchange_series()
    assert world.run("apply").returncode == Exit.EDITED and look(world.site) == edited
    shown = world.run("diff").stdout
    assert [line for line in shown.splitlines() if line[:1] in "+-"][2:] == ["+# mine"]
    assert world.run("apply", "--edits-to", str(tmp_path / "edits")).returncode == Exit.OK
    assert look(world.site) == upgraded and (tmp_path / "edits").read_text() == shown


def test_an_upgrade_killed_before_every_write_is_completed_by_any_release(
    world, exchange_series, pristine_tree, patched_tree, look
):
    """SIGKILL before each write of an upgrade; then the old release, the new one, or a revert finishes it."""
    for number in range(0, 300, 7):
        write_series(VERSION, CHANGES)
        assert world.call("apply") == 0 and look(world.site) == patched_tree
        upgraded = exchange_series()
        if world.drive("kill", number, "apply").end()[0] == 0:
            break
        command, expected = (("apply", upgraded), ("revert", pristine_tree), ("apply", patched_tree))[number % 3]
        if expected is patched_tree:
            write_series(VERSION, CHANGES)
        assert world.call(command) == 0, number
        assert look(world.site) == expected, number
    assert number > 30


def test_after_a_reinstall_everything_is_applied_again(world, pristine_tree, patched_tree, look, make_package):
    assert world.call("apply") == Exit.OK
    shutil.rmtree(world.target)
    shutil.rmtree(world.site / "openrlhf-1.0.dist-info")
    make_package(
        world.site, {path: text for path, text in pristine_tree.items() if path.startswith("openrlhf/")}, VERSION
    )
    assert world.read_status()["state"] == "pristine"
    assert world.call("apply") == Exit.OK and look(world.site) == patched_tree
    assert folder(VERSION).is_dir()
