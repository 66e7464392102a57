"""The checkpoints kept if correctness falls. The line of a step is written after its save, as in a run."""

import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from grpo.checkpoint import saving
from grpo.diagnosis import diagnose
from grpo.run.saved_steps import saved_steps

FLAGS = {"rollout_batch_size": 8, "n_samples_per_prompt": 8}


def draw_correctness(steps: int, before: float = 0.7, fall: int | None = None, after: float = 0.0) -> np.ndarray:
    """Shares of right samples of 8 problems of different difficulty, 8 samples of each; [steps]."""
    rng = np.random.default_rng(3)
    level = np.where(np.arange(1, steps + 1) < (fall or steps + 1), before, after)
    odds = np.log(level.clip(1e-9) / (1 - level.clip(1e-9)))[:, None] + rng.normal(0, 1, (steps, 8))
    return rng.binomial(8, 1 / (1 + np.exp(-odds))).mean(axis=1) / 8


class Trainer:
    """A run directory, and the saves of a trainer that are not its tensors."""

    def __init__(self, folder: Path, keep: int, every: int = 2) -> None:
        self.folder, self.every = folder, every
        self.args = SimpleNamespace(run_dir=str(folder), metrics_dir=None, max_ckpt_num=keep)
        self.checkpoints = folder / "checkpoints"
        (folder / "config.json").write_text(json.dumps({"flags": FLAGS}))

    def step(self, step: int, correct: float) -> None:
        status = {"correct": correct, "reward": correct}
        if step % self.every == 0:
            (self.checkpoints / f"step_{step}" / "adapter").mkdir(parents=True)
            saving.rotate(self.checkpoints, self.args, {"global_step": step, "status": status})
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, **status}) + "\n")

    def train(self, values: np.ndarray) -> None:
        for step, correct in enumerate(values, 1):
            self.step(step, float(correct))

    @property
    def steps(self) -> list[int]:
        return saved_steps(self.checkpoints)


@pytest.mark.parametrize(("fall", "good", "keep"), [(21, 18, 2), (22, 20, 2), (7, 4, 2), (8, 6, 2), (21, 20, 1)])
def test_the_last_checkpoint_before_a_fall_stays(tmp_path: Path, caplog, fall: int, good: int, keep: int) -> None:
    """The policy saved in the step before the fall sampled the first bad step, so its checkpoint may be damaged."""
    trainer = Trainer(tmp_path, keep)
    with caplog.at_level(logging.WARNING):
        trainer.train(draw_correctness(60, fall=fall))
    assert trainer.steps == sorted({good, *(60 - 2 * back for back in range(keep))})
    said = [record.message for record in caplog.records if "is kept in addition" in record.message]
    assert len(said) == 1 and f"step_{good} " in said[0] and f"step_{good}/adapter" in said[0]


def test_without_a_fall_nothing_else_is_kept(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, 2)
    trainer.train(draw_correctness(60, before=0.4))
    assert trainer.steps == [58, 60]


def test_checkpoint_before_a_fall_is_released_after_recovery(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, 2)
    values = draw_correctness(80, fall=21)
    values[40:] = draw_correctness(40)
    trainer.train(values[:38])
    assert trainer.steps == [18, 36, 38]
    for step in range(39, 81):
        trainer.step(step, float(values[step - 1]))
    assert trainer.steps == [78, 80]


def test_the_best_by_held_out_problems_stays_as_well(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, 2)
    rows = [{"step": step, "exact_match": score, "samples": 72} for step, score in ((4, 0.8), (18, 0.7))]
    (tmp_path / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trainer.train(draw_correctness(40, fall=21))
    assert trainer.steps == [4, 40], "the best is from before the fall, too"


@pytest.mark.parametrize("broken", ["config.json", "rule"])
def test_nothing_is_removed_if_the_diagnosis_fails(tmp_path: Path, caplog, monkeypatch, broken: str) -> None:
    trainer = Trainer(tmp_path, 2)
    trainer.train(draw_correctness(8))
    with monkeypatch.context() as patched:
        if broken == "rule":
            patched.setattr(diagnose, "find_falls", lambda run: 1 / 0)
        else:
            (tmp_path / broken).write_text("{")
        for step in (9, 10, 11, 12):
            trainer.step(step, 0.7)
    assert trainer.steps == [6, 8, 10, 12]
    assert "no checkpoint is removed" in caplog.text
    (tmp_path / "config.json").write_text(json.dumps({"flags": FLAGS}))
    for step in (13, 14):
        trainer.step(step, 0.7)
    assert trainer.steps == [12, 14]


def test_missing_or_broken_metrics_lines_do_not_stop_rotation(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, 1)
    (tmp_path / "config.json").unlink()
    shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)
    (trainer.checkpoints / "step_2" / "adapter").mkdir(parents=True)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "correct": null}\n{"step\n')
    saving.rotate(trainer.checkpoints, trainer.args, {"global_step": 2})
    assert trainer.steps == [2]


def test_a_second_deeper_fall_does_not_hide_the_first(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, 2, every=10)
    values = np.concatenate([draw_correctness(40), draw_correctness(44, before=0.35), np.zeros(36)])
    trainer.train(values)
    assert trainer.steps[0] == 30 and trainer.steps[-2:] == [110, 120]
