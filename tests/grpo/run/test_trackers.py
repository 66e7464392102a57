import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from grpo.run import trackers


def make_arguments(tmp_path, **changes):
    off = {"use_tensorboard": None, "use_wandb": None, "use_trackio": False}
    names = {"wandb_org": None, "wandb_project": "p", "wandb_group": None, "wandb_run_name": "run-1"}
    names["run_dir"] = str(tmp_path / "run-1")
    return SimpleNamespace(**off | names | changes)


def read_scalars(folder) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, round(e.value, 6)) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_has_every_number_and_a_resumed_run_no_step_twice(tmp_path):
    args = make_arguments(tmp_path, use_tensorboard=str(tmp_path / "tensorboard"))
    first = trackers.start(args, 0)
    for step in (1, 2, 3):
        first.log("train", step, {"reward": step / 10, "seconds": {"train": 2.0}, "grad_norms": [1.0]})
    first.close()
    again = trackers.start(args, 2)  # killed in step 4, resumed from step 2
    again.log("train", 3, {"reward": 0.9})
    again.log("eval", 3, {"exact_match": 0.5})
    again.close()
    assert read_scalars(tmp_path / "tensorboard") == {
        "train/reward": [(1, 0.1), (2, 0.2), (3, 0.9)],
        "train/seconds/train": [(1, 2.0), (2, 2.0)],
        "eval/exact_match": [(3, 0.5)],
    }


def install_stand_in(monkeypatch, name: str) -> list:
    """A stand-in for a tracker's package that records its calls."""
    told: list = []
    run = SimpleNamespace(
        log=lambda numbers, **more: told.append((numbers, more)),
        finish=lambda: told.append("finished"),
        define_metric=lambda *_, **__: None,
    )
    module = ModuleType(name)
    module.init = lambda **options: told.append(options) or run
    monkeypatch.setitem(sys.modules, name, module)
    return told


@pytest.mark.parametrize(("flag", "name"), [("use_wandb", "wandb"), ("use_trackio", "trackio")])
def test_services_get_the_numbers_and_no_key(tmp_path, monkeypatch, flag, name):
    told = install_stand_in(monkeypatch, name)
    args = make_arguments(tmp_path, lora_rank=8, use_wandb="a-secret-key", run_dir=str(tmp_path))
    tracker = dict((known, tracker) for known, _, tracker in trackers.KNOWN)[flag]
    started = trackers.Trackers([tracker(args, 0)])
    started.log("train", 1, {"reward": 0.5})
    started.close()
    options, (numbers, more), end = told
    assert options["name"].startswith("run-1") and options["resume"] == "allow" and options["config"]["lora_rank"] == 8
    assert "a-secret-key" not in repr(options)
    assert numbers["train/reward"] == 0.5 and (more.get("step") or numbers["global_step"]) == 1
    assert end == "finished"


@pytest.mark.parametrize(("kind", "name"), [("Wandb", "wandb"), ("Trackio", "trackio")])
def test_a_page_is_of_one_run_and_gets_each_step_once(kind, name, tmp_path, monkeypatch):
    """A run is killed in step 4 and resumed from step 2; another one's folder has the same name."""
    told = install_stand_in(monkeypatch, name)
    for folder, steps in (("a", (1, 2, 3)), ("a", (3, 4)), ("b", (1,))):
        args = make_arguments(tmp_path / folder)
        Path(args.run_dir).mkdir(parents=True, exist_ok=True)
        page = trackers.Trackers([getattr(trackers, kind)(args, steps[0] - 1)])
        for step in steps:
            page.log("train", step, {"reward": step / 10})
            if step > 2:
                page.log("eval", step, {"exact_match": step / 10})
    ids = [options["id"] if kind == "Wandb" else options["name"] for options in told if "project" in options]
    assert ids[0] == ids[1] != ids[2]
    sent = [numbers | more for numbers, more in (call for call in told if isinstance(call, tuple))]
    step = "global_step" if kind == "Wandb" else "step"
    assert [row[step] for row in sent if "train/reward" in row] == [1, 2, 3, 4, 1]
    assert [row[step] for row in sent if "eval/exact_match" in row] == [3, 4]


def test_a_tracker_that_fails_is_switched_off_and_the_others_go_on(caplog):
    seen = []

    def fail(step, numbers):
        raise ConnectionError("no network")

    bad = SimpleNamespace(log=fail, close=fail)
    good = SimpleNamespace(log=lambda step, numbers: seen.append(step), close=lambda: seen.append("closed"))
    both = trackers.Trackers([bad, good])
    with caplog.at_level("WARNING", logger="openrlhf.grpo.trackers"):
        for step in (1, 2):
            both.log("train", step, {})
        both.close()
    assert seen == [1, 2, "closed"]
    assert len(caplog.records) == 1 and "no network" in caplog.text


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None if name == "trackio" else object())
    args = make_arguments(tmp_path, use_trackio=True, use_tensorboard="somewhere")
    assert trackers.missing_packages(args) == [("use_trackio", "trackio")]


def test_disabled_trackers_are_not_imported():
    code = "import sys; import grpo.run.trackers; print(sys.modules.keys() & {'wandb', 'trackio', 'tensorboard'})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
