"""Which steps of a run can be continued from, by their digests, and what an earlier one gives up."""

import json
import struct
from pathlib import Path

import pytest

from grpo.checkpoint import digests, saving
from grpo.launch import __main__ as launch
from grpo.launch import resume
from grpo.run.run_files import RunFiles
from grpo.run.saved_steps import saved_steps
from grpo.stack.problem import UserError

from .stopped_run import log, read_steps, start


def test_two_damaged_floats_are_not_resumed(setting, save) -> None:
    start(setting)
    save(10, 20, is_sealed=True)
    state = setting.run_dir / "checkpoints" / "step_20" / "trainer" / "rank_0.safetensors"
    content = bytearray(state.read_bytes())
    content[-8:] = struct.pack("<2f", 1e30, 1e30)
    state.write_bytes(content)
    for step in (None, 20):
        with pytest.raises(UserError, match=r"step_20: trainer/rank_0.* was changed .*: --from-step 10 continues"):
            resume.resolve_resumed(setting.make_words(), setting.run_dir, step)


def test_checkpoints_of_earlier_versions_are_continued_with_a_note(setting, save) -> None:
    start(setting)
    save(10)
    config = resume.resolve_resumed(setting.make_words(), setting.run_dir)
    (unverified,) = resume.describe(config)[1:]
    assert "step_10 cannot be verified" in unverified
    for part in digests.PARTS:
        digests.write(setting.run_dir / "checkpoints" / "step_10" / part)
    assert resume.describe(config) == ["continuing after step 10"]
    # A save writes the list for both parts, so one part cannot lack it.
    (setting.run_dir / "checkpoints" / "step_10" / "trainer" / digests.NAME).unlink()
    with pytest.raises(UserError, match="trainer/SHA256SUMS is missing"):
        resume.resolve_resumed(setting.make_words(), setting.run_dir)


def test_only_complete_steps_can_be_continued(setting, save) -> None:
    start(setting)
    checkpoints = setting.run_dir / "checkpoints"
    save(10, 20, 30, is_sealed=True)
    (checkpoints / "step_20" / "trainer" / "state.safetensors").unlink()
    (checkpoints / ".step_40.partial" / "adapter").mkdir(parents=True)
    for step in (15, 40, 0, -10):
        with pytest.raises(UserError, match=rf"has no step_{step}: .* \(complete: 10, 30\)"):
            resume.resolve_resumed(setting.make_words(), setting.run_dir, step)
    with pytest.raises(UserError, match=r"trainer/state.safetensors is missing.* \(complete: 10, 30\)"):
        resume.resolve_resumed(setting.make_words(), setting.run_dir, 20)


def test_error_says_if_no_step_is_complete(setting, save) -> None:
    start(setting)
    checkpoints = setting.run_dir / "checkpoints"
    with pytest.raises(UserError, match=r"has no step_10: no checkpoint is complete; without --from-step .* step 0"):
        resume.resolve_resumed(setting.make_words(), setting.run_dir, 10)
    save(10, 20, is_sealed=True)
    for step in (10, 20):
        (checkpoints / f"step_{step}" / "trainer" / "state.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no step_15: no checkpoint is complete \(damaged: 10, 20\)"):
        resume.resolve_resumed(setting.make_words(), setting.run_dir, 15)
    with pytest.raises(UserError, match=r"step_20: .*state.* is missing.*no other checkpoint is complete"):
        resume.resolve_resumed(setting.make_words(), setting.run_dir, 20)


def test_continuing_an_earlier_step_sets_newer_ones_aside_without_loss(setting, save) -> None:
    start(setting)
    folder, checkpoints, samples = setting.run_dir, setting.run_dir / "checkpoints", setting.run_dir / "samples"
    save(10, 20, 30, is_sealed=True)
    for name in ("metrics.jsonl", "eval.jsonl"):
        log(folder, name, range(1, 36))
    samples.mkdir()
    for name in ("step_10", "step_11", "eval_30"):
        (samples / f"{name}.jsonl").write_text("{}\n")
    (folder / "final").mkdir()
    (folder / "final" / "adapter_config.json").write_text("{}")
    RunFiles(folder).wandb.write_text("{}")
    given_up = (checkpoints / "step_20" / "trainer" / "rank_0.safetensors").read_bytes()

    news = resume.take_back(resume.resolve_resumed(setting.make_words(), folder, 10), folder)
    assert read_steps(folder / "metrics.jsonl") == read_steps(folder / "eval.jsonl") == list(range(1, 11))
    assert [path.stem for path in samples.iterdir()] == ["step_10"]
    assert saved_steps(checkpoints) == [10]
    (aside,) = checkpoints.glob("set-aside-*")
    assert {path.name for path in aside.iterdir()} == {"step_20", "step_30"}
    assert (aside / "step_20" / "trainer" / "rank_0.safetensors").read_bytes() == given_up
    assert not RunFiles(folder).wandb.exists(), "the steps that come are on a page of their own"
    assert not (folder / "final").exists() and (folder / f"final-{aside.name}" / "adapter_config.json").is_file()
    assert all(any(f"{name} was newer and was moved to {folder}" in line for line in news)
               for name in ("step_20", "step_30", "final"))  # fmt: skip
    entry = json.loads((folder / "resumes.jsonl").read_text())
    assert entry["step"] == 10 and entry["set_aside"]["step_30"] == str(aside / "step_30")

    saving.remove(checkpoints, [])  # the clean-up of the next save
    assert {path.name for path in aside.iterdir()} == {"step_20", "step_30"}
    config = resume.resolve_resumed(setting.make_words(), folder)
    assert resume.resumed_step(config) == 10
    resume.take_back(config, folder)
    assert list(checkpoints.glob("set-aside-*")) == [aside]


def test_a_kill_while_newer_steps_are_set_aside_leaves_the_logs(setting, save, monkeypatch) -> None:
    start(setting)
    save(10, 20, 30)
    log(setting.run_dir, "metrics.jsonl", range(1, 36))
    config = resume.resolve_resumed(setting.make_words(), setting.run_dir, 10)
    renamed = []

    def rename(old: Path, new: Path, real=Path.rename) -> None:
        if renamed:
            raise KeyboardInterrupt
        renamed.append(real(old, new))

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "rename", rename)
        resume.take_back(config, setting.run_dir)
    assert len(read_steps(setting.run_dir / "metrics.jsonl")) == 35
    assert saved_steps(setting.run_dir / "checkpoints") == [10, 20]
    resume.take_back(resume.resolve_resumed(setting.make_words(), setting.run_dir, 10), setting.run_dir)
    assert saved_steps(setting.run_dir / "checkpoints") == [10]
    assert len(read_steps(setting.run_dir / "metrics.jsonl")) == 10


def test_a_check_of_an_earlier_step_changes_nothing(setting, save, monkeypatch, capsys) -> None:
    start(setting)
    save(10, 20, is_sealed=True)
    log(setting.run_dir, "metrics.jsonl", range(1, 25))
    before = {path: path.stat().st_mtime_ns for path in setting.run_dir.rglob("*")}
    monkeypatch.setattr(launch.preflight, "problems", lambda *_, **__: [])
    words = ["check", "--resume", str(setting.run_dir), "--from-step", "10", "--", *setting.make_words()]
    assert launch.main(words) == 0
    said = capsys.readouterr().out
    assert "continuing after step 10" in said and "these newer steps would be moved away: step_20" in said
    assert {path: path.stat().st_mtime_ns for path in setting.run_dir.rglob("*")} == before
