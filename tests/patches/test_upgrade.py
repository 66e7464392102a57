"""An installation with the patches of an earlier release."""

from dataclasses import replace

import pytest

from patches.errors import Exit
from patches.manifest import Manifest
from patches.series import write_folder

from .conftest import CHANGES, VERSION


@pytest.fixture
def upgraded(world, before, make_wheel, tmp_path, monkeypatch):
    """An installation with the patches of a release whose successor changed one patch and dropped another."""
    assert world.call("apply") == Exit.OK
    first, second, _ = CHANGES
    actor, loop = second.files["openrlhf/models/actor.py"], second.files["openrlhf/trainer/loop.py"]
    changed = actor[1].replace(b"EXTRA = 1", b"EXTRA = 2")
    files = {"openrlhf/models/actor.py": (actor[0], changed), "openrlhf/trainer/loop.py": loop}
    write_folder(world.checkout / "patches" / f"openrlhf-{VERSION}", VERSION, [first, replace(second, files=files)])
    make_wheel(tmp_path, before, VERSION)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    expected = before | {path: new for path, (_, new) in (first.files | files).items()}
    return expected


def test_patches_of_an_earlier_release_are_replaced(world, upgraded, before, look):
    status = world.status()
    assert (status["state"], status["code"]) == ("drifted", Exit.DRIFTED)
    assert "earlier release" in status["message"]
    assert world.run("diff").returncode == Exit.DRIFTED  # nothing but the wheel leads back to the pristine text
    done = world.run("apply")
    assert done.returncode == Exit.OK, done.stderr
    assert look(world.site) == upgraded
    assert world.status()["state"] == "applied"
    assert world.run("revert").returncode == Exit.OK
    assert look(world.site) == before


def test_patches_of_an_earlier_release_can_be_reverted_at_once(world, upgraded, before, look):
    assert world.run("revert").returncode == Exit.OK
    assert look(world.site) == before


def test_a_hand_edit_on_an_earlier_release_is_never_overwritten(world, upgraded, look):
    file = world.target / "trainer" / "loop.py"
    file.write_bytes(file.read_bytes() + b"\n# mine\n")
    edited = look(world.site)
    assert world.run("apply").returncode == Exit.EDITED
    assert look(world.site) == edited


def test_without_the_wheel_an_earlier_release_stays_as_it_is(world, upgraded, look, monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    installed = look(world.site)
    done = world.run("apply")
    assert done.returncode == Exit.NO_WHEEL and "pip download" in done.stderr
    assert look(world.site) == installed


def test_exporting_twice_remembers_the_earlier_release_once(world, upgraded):
    folder = world.checkout / "patches" / f"openrlhf-{VERSION}"
    known = Manifest.load(VERSION).earlier
    assert known.keys() == {"openrlhf/models/actor.py", "openrlhf/trainer/old.py", "openrlhf/hooks/empty.py"}
    assert known["openrlhf/trainer/old.py"] == [None]  # the file that a dropped patch had deleted
    for _ in range(2):
        write_folder(folder, VERSION, CHANGES[:1])
    known = Manifest.load(VERSION).earlier
    assert [len(known[path]) for path in sorted(known)] == [1, 2, 1, 1]
    write_folder(folder, VERSION, CHANGES)  # back to the first release: what it leaves is known by its patches again
    assert known["openrlhf/models/actor.py"][0] not in Manifest.load(VERSION).earlier["openrlhf/models/actor.py"]
