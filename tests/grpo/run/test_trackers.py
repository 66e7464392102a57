"""The trackers' own packages get a run that is killed in step 4 and resumed from step 2. None can stop a run."""

import contextlib
import http.server
import importlib.util
import json
import sqlite3
import threading
import time
from types import SimpleNamespace

import pytest
import wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from grpo.run import trackers
from grpo.stack.checkout import CHECKOUT

KEY = "k" * 40
REWARDS = [step / 8 + 2**-10 for step in (1, 2, 3, 4)]


@pytest.fixture(autouse=True)
def run(tmp_path, monkeypatch):
    """Settings of a run on a machine without settings of the trackers."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_DIR", "NETRC", "TRACKIO_SPACE_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    off = {"use_tensorboard": None, "use_wandb": None, "use_trackio": False, "run_dir": str(tmp_path / "run")}
    yield SimpleNamespace(**off, wandb_org=None, wandb_project="p", wandb_group=None, wandb_run_name="mine")
    wandb.teardown()  # its service works as long as this process


def train(run) -> None:
    for last, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        started = trackers.start(run, last)
        for step in steps:
            started.log("train", step, {"reward": REWARDS[step - 1], "seconds": {"train": 2}, "grad_norms": [1.0]})
        started.log("eval", 3, {"exact_match": 0.5})
        started.close()
        time.sleep(1.1)  # W&B names a part's folder by the second


def test_tensorboard_has_the_numbers_of_the_resumed_run(run, tmp_path):
    run.use_tensorboard = str(tmp_path / "events")
    train(run)
    events = EventAccumulator(run.use_tensorboard)
    events.Reload()
    read = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert read == {
        "train/reward": list(enumerate(REWARDS, 1)),
        "train/seconds/train": [(step, 2) for step in (1, 2, 3, 4)],
        "eval/exact_match": [(3, 0.5)],
    }


def test_wandb_continues_a_page_offline_and_keeps_no_key(run, tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "LONGEST_END", 600.0)  # a busy machine starts W&B slowly
    run.use_wandb = KEY
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert not list(trackers.problems(run))
    train(run)
    wandb.teardown()  # its service has written all then
    page = json.loads((tmp_path / "run" / "wandb.json").read_text())
    assert (page["train"], page["eval"]) == (4, 3)
    parts = [file.read_bytes() for file in sorted((tmp_path / "run" / "wandb").glob(f"*-{page['id']}/*.wandb"))]
    assert [[str(reward).encode() in part for reward in REWARDS] for part in parts] == [[1, 1, 1, 0], [0, 0, 0, 1]]
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert not [file for file in files if KEY.encode() in file.read_bytes()]


@pytest.mark.skipif(not importlib.util.find_spec("trackio"), reason="Trackio is not installed")
def test_trackio_continues_a_page_and_keeps_no_key(run, tmp_path):
    run.use_trackio, run.use_wandb = True, None
    assert not list(trackers.problems(run))
    train(run)
    (database,) = (tmp_path / "trackio").glob("*.db")
    with sqlite3.connect(database) as opened:
        rows = opened.execute("select run_name, step from metrics order by step").fetchall()
    name = f"mine-{json.loads((tmp_path / 'run' / 'trackio.json').read_text())['id'][:8]}"
    assert rows == [(name, step) for step in (1, 2, 3, 3, 4)]


def test_trackers_that_fail_or_hang_neither_end_nor_delay_a_run(monkeypatch, caplog):
    monkeypatch.setattr(trackers, "LONGEST_END", 2.0)
    monkeypatch.setenv("SOME_TOKEN", KEY)
    seen, forever = [], threading.Event()

    def fail(*_):
        raise ConnectionError(f"401 for {KEY}")

    sends = {"hangs": lambda *_: forever.wait(), "fails": fail, "works": lambda step, _: seen.append(step)}
    opens = {name: lambda send=send: contextlib.nullcontext(send) for name, send in sends.items()}
    started = trackers.Trackers({**opens, "starts": fail})
    for step in range(3):
        started.log("train", step, {})
    started.close()
    assert seen == [0, 1, 2]
    assert sorted(record.args[0] for record in caplog.records) == ["fails", "hangs", "starts"]
    assert KEY not in caplog.text
    forever.set()


def test_wandb_is_refused_without_a_key_or_with_one_that_its_server_refuses(run, monkeypatch):
    run.use_wandb = KEY
    [problem] = trackers.problems(run)
    assert "WANDB_API_KEY" in problem.remedy
    refuse = type("Refuse", (http.server.BaseHTTPRequestHandler,), {"do_POST": lambda self: self.send_error(401)})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), refuse) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        [problem] = trackers.problems(run)
        server.shutdown()
    assert "401" in problem.what and KEY not in problem.what and "WANDB_MODE=offline" in problem.remedy


def test_a_package_that_is_missing_or_cannot_be_imported_is_named(run, tmp_path, monkeypatch):
    run.use_trackio = True
    assert "\ntrackio==" in (CHECKOUT / trackers.INSTALL["trackio"].split()[-1]).read_text()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    [problem] = trackers.problems(run)
    assert "--use_trackio" in problem.what and problem.remedy == trackers.INSTALL["trackio"]
    monkeypatch.undo()
    (tmp_path / "trackio.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    [problem] = trackers.problems(run)
    assert "no_such_package" in problem.what and problem.remedy == trackers.INSTALL["trackio"]
