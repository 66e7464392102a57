"""The list of runs: all that are there, each with its state, and nothing that stops it."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from grpo.run.run_files import RunFiles
from grpo.run.run_log import RunLog
from grpo.run.run_state import Run
from scripts import runs


def list_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict]:
    assert runs.main([str(folder), "--json"]) == 0
    return {run["name"]: run for run in json.loads(capsys.readouterr().out)}


def test_every_state(make_run, tmp_path, capsys) -> None:
    for name, code in (("killed", None), ("failed", 1), ("interrupted", 130), ("terminated", 143), ("done", 0)):
        run = make_run(name)
        run.hold()
        run.step(1)
        run.let_go(code)
    going = make_run("going")
    going.hold()
    states = {name: run["state"] for name, run in list_runs(tmp_path, capsys).items()}
    assert states == {
        "runs/killed": "crashed",
        "runs/failed": "crashed",
        "runs/interrupted": "stopped",
        "runs/terminated": "stopped",
        "runs/done": "finished",
        "runs/going": "running",
    }


def test_a_run_that_was_resumed_is_judged_by_its_last_part(make_run, tmp_path, capsys) -> None:
    run = make_run()
    for part in (130, None):
        run.hold()
        run.resume_after(0)
        run.step(1)
        run.let_go(part)
    assert Run(run.folder).state == "crashed"
    assert runs.main([str(tmp_path)]) == 0
    assert "crashed (resumed 2x)" in capsys.readouterr().out


def test_a_run_of_a_version_that_does_not_say_how_it_ended(make_run) -> None:
    run = make_run()
    run.step(39)
    run.save_final()
    assert Run(run.folder).state == "crashed"  # this adapter is of an earlier, shorter run
    run.step(40)
    assert Run(run.folder).state == "finished"


def test_listing_runs_writes_nothing(make_run, tmp_path, capsys) -> None:
    run = make_run()
    before = sorted(tmp_path.rglob("*"))
    assert not RunFiles(run.folder).is_held()
    list_runs(tmp_path, capsys)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_oldest_is_first_and_each_is_one_line(make_run, tmp_path, capsys) -> None:
    new, old = make_run("a"), make_run("b")
    old.evaluate(0, 0.2)
    time.sleep(0.01)
    for step in (1, 2, 3):
        old.step(step)
    old.evaluate(3, 0.4)
    stamp = time.time() + 60
    for run in (new, old):  # as a copy has it
        run.hold()
        run.let_go(0)
    for name in (".lock", "config.json"):
        os.utime(new.folder / name, (stamp, stamp))
    assert runs.main([str(tmp_path / "runs")]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert first.split()[:3] == ["b", "finished", "3/40"] and second.split()[:3] == ["a", "finished", "0/40"]
    assert "0.200 -> 0.400 [0.300, 0.500]  0.030" in first
    assert first.index("finished") == header.index("state")


def test_a_score_and_an_exact_match_are_not_one_curve(make_run, tmp_path, capsys) -> None:
    run = make_run()
    RunLog(str(run.folder)).write_eval(0, {"score": 7.0, "n": 18})
    run.evaluate(3, 0.4)
    assert runs.main([str(tmp_path / "runs")]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert "0.400 [0.300, 0.500]" in line and "->" not in line


def test_a_moved_run_and_metrics_on_another_disk(make_run, tmp_path, capsys) -> None:
    run = make_run()
    run.step(7)
    shutil.move(run.folder, tmp_path / "elsewhere" / "tiny-1")
    away = make_run("away", metrics_dir=str(tmp_path / "disk"))
    away.step(3)
    (tmp_path / "disk").mkdir()
    (away.folder / "metrics.jsonl").rename(tmp_path / "disk" / "metrics.jsonl")
    assert {name: run["step"] for name, run in list_runs(tmp_path, capsys).items()} == {
        "elsewhere/tiny-1": 7,
        "runs/away": 3,
    }


def test_folders_without_a_run(tmp_path, make_run, capsys) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    assert runs.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no runs under {tmp_path}\n"
    run = make_run()
    (run.folder / "config.json").write_text("{")  # damaged
    run.step(1)
    [(name, only)] = list_runs(run.folder, capsys).items()
    assert (name, only["step"], only["planned"]) == ("tiny-1", 1, None)


def test_without_a_folder_it_lists_those_of_the_checkout(make_run, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(runs, "CHECKOUT", tmp_path)
    assert runs.main([]) == 0
    assert capsys.readouterr().out.startswith("no runs under")
    make_run("mine")
    assert runs.main([]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("mine")


def test_unreadable_run_does_not_hide_the_others(make_run, tmp_path, capsys) -> None:
    make_run("good")
    (make_run("bad").folder / "metrics.jsonl").mkdir()
    os.mkfifo(make_run("pipe").folder / "ends.jsonl")
    assert runs.main([str(tmp_path), "--json"]) == 1
    printed = capsys.readouterr()
    states = {run["name"]: run["state"] for run in json.loads(printed.out)}
    assert states == {"runs/good": "crashed", "runs/bad": "unreadable", "runs/pipe": "unreadable"}
    assert "bad cannot be read" in printed.err
    assert runs.main([str(tmp_path)]) == 1
    assert "runs/bad   unreadable  ?/?" in capsys.readouterr().out
