"""Which checkpoints a save removes."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo.checkpoint import saving
from grpo.run.run_files import saved_steps


def rotate(folder: Path, keep: int) -> list[int]:
    saving.rotate(folder / "checkpoints", SimpleNamespace(run_dir=str(folder), metrics_dir=None, max_ckpt_num=keep))
    return saved_steps(folder / "checkpoints")


def test_the_newest_and_the_best_by_held_out_problems_stay(tmp_path: Path) -> None:
    for step in range(2, 42, 2):
        (tmp_path / "checkpoints" / f"step_{step}" / "adapter").mkdir(parents=True)
    rows = [{"step": step, "exact_match": score} for step, score in ((4, 0.8), (18, 0.7))]
    (tmp_path / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert rotate(tmp_path, 3) == [4, 38, 40]


def test_a_checkpoint_that_cannot_be_removed_ends_no_run(tmp_path: Path, monkeypatch, caplog) -> None:
    for step in (2, 4, 6):
        (tmp_path / "checkpoints" / f"step_{step}" / "adapter").mkdir(parents=True)
    with monkeypatch.context() as patched:
        patched.setattr(saving, "remove", _refuse)
        assert rotate(tmp_path, 2) == [2, 4, 6]
    assert "not removed" in caplog.text
    assert rotate(tmp_path, 2) == [4, 6]


@pytest.mark.parametrize(("size", "is_told"), [(4_000_000, False), (9_000_000, True)])
def test_a_checkpoint_that_is_larger_than_planned_is_named_once(tmp_path: Path, caplog, size, is_told) -> None:
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
