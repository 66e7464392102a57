"""Directories of runs that are whole, in progress, resumed, damaged, or of another version."""

import logging
import math

import pytest

from grpo.metrics.metric_schema import SCHEMA
from grpo.stack.problem import UserError
from scripts.report.panels import OTHER, evaluations, missing, panels
from scripts.report.runs import read, series, short_names
from tests.scripts.report.conftest import make_eval_line, write_lines


def test_a_run(make_run):
    (run,) = read([make_run(steps=30)])
    assert (run.name, run.step, run.planned, run.state) == ("run", 30, 30, "stopped")
    assert [row["step"] for row in run.evals] == [0, 15, 30] and list(run.files.sample_files("eval")) == [0, 15, 30]
    assert missing(run) == [
        metric.name for metric in SCHEMA if metric.name in ("seconds.old_log_probs", "seconds.save")
    ]


def test_lines_that_a_kill_or_a_resumption_left(make_run, caplog):
    folder = make_run(steps=4)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "reward": 7}\n[1]\n{"reward": 1}\n{"step": 5, "rew')
    with caplog.at_level(logging.WARNING):
        (run,) = read([folder])
    assert [row["step"] for row in run.metrics] == [1, 2, 3, 4]
    assert dict(series(run.metrics)["reward"])[3] == 7  # the later line of a step counts


def test_null_and_infinite_values(make_run):
    folder = make_run(steps=1)
    row = '{"step": 2, "reward": NaN, "correct": null, "grad_norm": Infinity, "ppo_kl": 1e999, "new": "x", "other": 2}'
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(row + "\n")
    columns = series(read([folder])[0].metrics)
    assert all(math.isfinite(value) for points in columns.values() for _, value in points)
    assert [step for step, _ in columns["reward"]] == [1] and columns["other"] == [(2, 2.0)] and "new" not in columns


def test_broken_and_missing_files_leave_the_rest(make_run):
    folder = make_run()
    (folder / "config.json").write_text("{")
    (folder / "env.json").write_text("[]")
    (folder / "samples" / "step_x.jsonl").touch()
    (run,) = read([folder])
    assert (run.config, run.read(run.files.environment), run.planned, run.step) == ({}, {}, None, 30)


def test_invalid_runs_are_rejected(tmp_path, make_run):
    with pytest.raises(UserError, match="is not a folder"):
        read([tmp_path / "none"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"neither config\.json"):
        read([tmp_path / "empty"])
    folder = make_run()
    with pytest.raises(UserError, match="twice"):
        read([folder, folder / ".." / folder.name])


def test_runs_have_distinct_names(tmp_path):
    assert short_names([tmp_path / "a" / "x", tmp_path / "b" / "y"]) == ["x", "y"]
    assert short_names([tmp_path / "a" / "x", tmp_path / "b" / "x"]) == ["a/x", "b/x"]


def test_panels_follow_the_schema_and_show_unknown_columns(make_run):
    old, new = make_run("old"), make_run("new")
    write_lines(old / "metrics.jsonl", [{"step": 1, "reward": 0.5, "own_column": 3}, {"step": 2, "reward": 0.75}])
    made = panels(read([old, new]))
    ranks = {metric.name: rank for rank, metric in enumerate(SCHEMA)}
    known = [panel.metric for panel in made if panel.metric.tier != OTHER]
    assert known == sorted(known, key=lambda metric: ranks[metric.name]) and made[-1].metric.name == "own_column"
    by_name = {panel.metric.name: panel for panel in made}
    assert [curve.run for curve in by_name["reward"].curves] == [0, 1]
    assert [curve.run for curve in by_name["own_column"].curves] == [0]
    assert [curve.run for curve in by_name["grad_norm"].curves] == [1]


def test_evaluations_stand_with_the_training_steps_and_keep_their_seconds():
    columns = evaluations([make_eval_line(0, 0.25), make_eval_line(8, 0.5) | {"ci_low": None}])
    first, last = columns["exact_match"]
    assert (first.step, first.value, first.low, first.high) == (0, 0.25, 0.15, 0.35)
    assert (last.value, last.low) == (0.5, None)
    assert [point.value for point in columns["truncated"]] == [0.1, 0.1] and "seconds" not in columns


def test_values_out_of_their_healthy_range_are_reported(make_run):
    folder = make_run(steps=1)
    write_lines(folder / "metrics.jsonl", [{"step": 1, "answered": 0.1, "truncated": 0.9, "ppo_kl": 0.01, "reward": 9}])
    (folder / "eval.jsonl").unlink()
    outside = {panel.metric.name: panel.outside for panel in panels(read([folder]))}
    assert outside == {"answered": [0], "truncated": [0], "ppo_kl": [], "reward": []}
