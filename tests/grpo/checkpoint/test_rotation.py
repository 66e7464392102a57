"""Which checkpoints a save removes."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo.checkpoint import saving
from grpo.checkpoint.saving import choose_kept_steps
from grpo.run.run_files import held_out, saved_steps


def rotate(folder: Path, keep: int) -> list[int]:
    saving.rotate(folder / "checkpoints", SimpleNamespace(run_dir=str(folder), metrics_dir=None, max_ckpt_num=keep))
    return saved_steps(folder / "checkpoints")


def test_a_checkpoint_that_cannot_be_removed_ends_no_run(tmp_path: Path, monkeypatch, caplog) -> None:
    for step in (2, 4, 6):
        (tmp_path / "checkpoints" / f"step_{step}" / "adapter").mkdir(parents=True)
    with monkeypatch.context() as patched:
        patched.setattr(saving, "remove", _refuse)
        assert rotate(tmp_path, 2) == [2, 4, 6]
    assert "not removed" in caplog.text
    assert rotate(tmp_path, 2) == [4, 6]


@pytest.mark.parametrize(("size", "is_told"), [(4_000_000, False), (9_000_000, True)])
def test_a_first_checkpoint_that_is_larger_than_planned_is_named(tmp_path: Path, caplog, size, is_told) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"flags": {}, "plan": {"checkpoint_bytes": 4_000_000}}))
    for step in (2, 4):
        (tmp_path / "checkpoints" / f"step_{step}" / "adapter").mkdir(parents=True)
        (tmp_path / "checkpoints" / f"step_{step}" / "adapter" / "weights").write_bytes(bytes(size))
        rotate(tmp_path, 2)
    assert sum("9 MB, and 4 MB were planned" in record.message for record in caplog.records) == is_told
    (tmp_path / "config.json").write_text("{")
    assert rotate(tmp_path, 1) == [4]


def _refuse(*_: object) -> None:
    raise PermissionError("read-only")


@pytest.mark.parametrize(
    ("scores", "count", "kept"),
    [
        ({}, 2, [30, 40]),
        ({10: 0.5, 20: 0.4, 30: 0.4}, 2, [10, 40]),
        ({10: 0.5, 20: 0.5, 30: 0.4}, 2, [20, 40]),  # the later of two equals
        ({40: 0.9, 10: 0.5}, 2, [30, 40]),
        ({10: 0.5}, 1, [10, 40]),  # the newest to go on from, the best to use
        ({40: 0.5}, 1, [40]),
        ({10: 0.5}, 0, [10, 40]),
        ({10: 0.5}, 9, [10, 20, 30, 40]),
        ({15: 0.9, 20: 0.1}, 3, [20, 30, 40]),  # no checkpoint was made at the best step
    ],
)
def test_the_newest_and_the_best_are_kept(scores, count, kept):
    assert choose_kept_steps([10, 20, 30, 40], scores, count) == kept


def test_scores_come_from_the_evaluations(tmp_path):
    assert held_out(tmp_path / "eval.jsonl") == {}
    rows = [{"step": 0, "exact_match": 0.1}, {"step": 10, "exact_match": None}, {"step": 20, "exact_match": 0.3}]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"step": 30, "exact'
    (tmp_path / "eval.jsonl").write_text(text)
    assert held_out(tmp_path / "eval.jsonl") == {0: 0.1, 20: 0.3}
    rows = [
        {"step": step, "exact_match": score, "n": n} for step, score, n in ((0, 0.9, 3), (5, 0.4, 18), (10, 0.5, 18))
    ]
    (tmp_path / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert held_out(tmp_path / "eval.jsonl") == {5: 0.4, 10: 0.5}, "chosen among evaluations of as many problems"


def test_scores_of_another_reward_are_no_longer_compared(tmp_path):
    rows = [{"step": 5, "exact_match": 0.8}, {"step": 10, "score": 0.2}, {"step": 15, "score": 0.3}]
    (tmp_path / "eval.jsonl").write_text("".join(json.dumps(row | {"n": 8}) + "\n" for row in rows))
    assert held_out(tmp_path / "eval.jsonl") == {10: 0.2, 15: 0.3}
