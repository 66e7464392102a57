"""Trackio with its own package, if it is installed: uv pip install --no-deps -r requirements/trackio.txt."""

import importlib.metadata
import importlib.util
import sqlite3
from types import SimpleNamespace

import pytest

from grpo.run import trackers
from grpo.stack.checkout import CHECKOUT

needs_package = pytest.mark.skipif(not importlib.util.find_spec("trackio"), reason="Trackio is not installed")


def test_the_remedy_names_a_file_that_pins_trackio():
    file = CHECKOUT / trackers.INSTALL["trackio"].split()[-1]
    assert file.name == "trackio.txt" and "\ntrackio==" in file.read_text()
    of_version = CHECKOUT / "requirements" / importlib.metadata.version("openrlhf") / file.name
    assert file == of_version or not of_version.exists()


@needs_package
def test_a_run_is_logged_and_continued(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    monkeypatch.delenv("TRACKIO_SPACE_ID", raising=False)
    assert trackers.trackio_fault() == ""
    (tmp_path / "run").mkdir()
    names = {"wandb_project": "p", "wandb_run_name": "mine", "run_dir": str(tmp_path / "run")}
    args = SimpleNamespace(use_wandb="a-secret-key", **names)
    for step in (1, 2):
        started = trackers.Trackers([trackers.Trackio(args, step - 1)])
        started.log("train", step, {"reward": step / 10})
        started.close()
    (database,) = tmp_path.glob("*.db")
    with sqlite3.connect(database) as opened:
        rows = opened.execute("select run_name, step, metrics from metrics order by step").fetchall()
    assert [step for _, step, _ in rows] == [1, 2]
    assert len({name for name, _, _ in rows}) == 1 and rows[0][0].startswith("mine-")
    assert b'"train/reward":0.2' in bytes(rows[1][2]).replace(b" ", b"")
    assert b"a-secret-key" not in database.read_bytes()


def test_a_package_that_cannot_be_imported_is_named(tmp_path, monkeypatch):
    (tmp_path / "trackio.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert trackers.trackio_fault() == "ModuleNotFoundError: No module named 'no_such_package'"
