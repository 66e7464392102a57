"""Reading what runs really leave: cut lines, resumed runs, nulls, unknown columns, other versions."""

import json
import math

import pytest

from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.finding import NotJudged
from grpo.diagnosis.history import build_history, read
from grpo.stack.problem import UserError


def make_row(step, **columns):
    return {"step": step, "time": 1e9 + step, "seconds": {"total": 1.0}, "lost_writes": 0, **columns}


def write(folder, rows, evals=(), config=None, cut=""):
    for name, lines in (("metrics.jsonl", rows), ("eval.jsonl", evals)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines) + cut)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_last_line_that_is_cut_is_left_out(tmp_path):
    run = read(
        write(tmp_path, [make_row(1, correct=0.5), make_row(2, correct=0.6)], cut='{"step": 3, "corr', config={})
    )
    assert run.steps.tolist() == [1, 2] and run.notes == ["config.json is missing, so settings are unknown"]


def test_repeated_steps_count_once_with_their_last_line(tmp_path):
    rows = [
        make_row(1, correct=0.1),
        make_row(2, correct=0.2),
        make_row(3, correct=0.3),
        make_row(2, correct=0.8),
        make_row(3, correct=0.9),
    ]
    run = read(write(tmp_path, rows))
    assert run.column("correct").values.tolist() == [0.1, 0.8, 0.9]
    assert any("2 lines repeat a step" in note for note in run.notes)


def test_null_text_booleans_and_infinities_are_not_numbers():
    values = [0.5, None, "0.5", True, math.nan, math.inf, 10**400, 1]
    run = build_history([make_row(step, x=value, actor_lr=1.0) for step, value in enumerate(values)])
    assert run.column("x").values.tolist() == [0.5, 1.0] and run.column("x").steps.tolist() == [0, 7]


def test_lines_without_a_step_and_unknown_columns_are_tolerated(tmp_path):
    rows = [{"hello": 1}, [1, 2], make_row(1, of_the_future=3.0, nested={"a": 1}), {"step": 10**30}]
    run = read(write(tmp_path, rows, [{"step": 0, "exact_match": None}, {"step": 10, "exact_match": 0.5}]))
    assert run.steps.tolist() == [1] and run.held_out.values.tolist() == [0.5]
    assert diagnose(run).notes[0] == "metrics.jsonl: 3 lines without a step are left out"


def test_the_warm_up_ends_where_the_learning_rate_stops_rising():
    rates = [0.25, 0.5, 0.75, 1.0, 0.99, 0.98]
    assert build_history([make_row(i + 1, actor_lr=rate) for i, rate in enumerate(rates)]).warm_up == 3
    assert build_history([make_row(i + 1, actor_lr=1.0) for i in range(5)]).warm_up == 0
    rising = build_history([make_row(i + 1, actor_lr=i + 1.0, correct=0.5) for i in range(50)])
    assert rising.warm_up == 49 and len(rising.after_warm_up.rows) == 1
    assert not diagnose(rising).findings


def test_later_rise_of_the_learning_rate_is_not_warm_up():
    rates = [0.5, 1.0, 1.0, 1.0, 5.0, 10.0]
    assert build_history([make_row(i + 1, actor_lr=rate) for i, rate in enumerate(rates)]).warm_up == 1


def test_warm_up_comes_from_the_plan_if_the_learning_rate_is_missing():
    plan = {"scheduled_optimizer_steps": 800, "optimizer_steps_per_step": 8}
    rows = [make_row(i + 1, correct=0.5) for i in range(30)]
    assert build_history(rows, config={"plan": plan, "flags": {"lr_warmup_ratio": 0.1}}).warm_up == 10
    unknown = build_history(rows)
    assert unknown.warm_up == 5 and any("count as the warmup" in note for note in unknown.notes)


def test_missing_columns_are_named():
    run = build_history([make_row(i, actor_lr=1.0, correct=0.5) for i in range(30)])
    with pytest.raises(NotJudged, match=r"entropy is missing in metrics"):
        run.require_column("entropy", 20)
    with pytest.raises(NotJudged, match="only 30 steps; 40 are needed"):
        run.require_column("correct", 40)
    with pytest.raises(NotJudged, match="only 30 steps after the warmup; 40 are needed"):
        run.after_warm_up.require_column("correct", 40)


def test_columns_are_aligned_on_common_steps():
    rows = [make_row(i, actor_lr=1.0, a=float(i)) | ({"b": -1.0 * i} if i % 2 else {}) for i in range(20)]
    a, b = build_history(rows).align_columns("a", "b", least=10)
    assert a.steps.tolist() == b.steps.tolist() == list(range(1, 20, 2)) and (a.values == -b.values).all()
    with pytest.raises(NotJudged):
        build_history(rows).align_columns("a", "b", least=11)


def test_metrics_on_another_disk_are_found(tmp_path):
    other, folder = tmp_path / "disk", tmp_path / "run"
    other.mkdir()
    folder.mkdir()
    write(other, [make_row(1)])
    (folder / "config.json").write_text(json.dumps({"flags": {"metrics_dir": str(other)}}))
    assert len(read(folder).rows) == 1


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "nor metrics.jsonl"),
        ({"config.json": "{}"}, "nor metrics.jsonl"),
        ({"metrics.jsonl": ""}, "ended before its first step"),
        ({"metrics.jsonl": '{"step": 1}'}, "ended before its first step"),
        ({"metrics.jsonl": '{"step": 1}\n', "config.json": "{"}, "cannot be read"),
        ({"metrics.jsonl": '{"step": 1}\n', "config.json": "[]"}, "was not written by the launcher"),
        ({"metrics.jsonl": '{"step": 1}\n', "config.json": '{"flags": 3}'}, "was not written by the launcher"),
    ],
)
def test_invalid_run_directory_is_rejected_with_a_reason(files, reason, tmp_path):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=reason):
        read(tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        read(tmp_path / "none")


def test_settings_use_the_names_of_the_launch_script():
    config = {"flags": {"actor_learning_rate": 1e-6, "dual_clip": 3.0}, "judge": {"QUALITY_WEIGHT": "0.4"}}
    run = build_history([], config=config)
    assert run.setting("LEARNING_RATE") == 1e-6 and run.setting("--dual_clip") == 3.0
    assert run.setting_number("QUALITY_WEIGHT") == 0.4 and run.setting("LORA_RANK") is None


def test_evaluations_of_other_problems_are_not_compared():
    evals = [
        {"step": 0, "exact_match": 0.9, "n": 2, "problems": 18},
        {"step": 5, "exact_match": 0.4, "n": 18, "problems": 18},
    ]
    run = build_history([make_row(1), make_row(2)], evals)
    assert run.held_out.steps.tolist() == [5]
    assert any("1 evaluations graded only some problems" in note for note in run.notes)
