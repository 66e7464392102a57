"""Which run `--resume` finds, from which checkpoint, and what it refuses and takes back."""

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file

from grpo import adapter_files, checkpoint, checkpoint_digests, run_state
from grpo.architecture import Architecture
from grpo.checkpoint_files import read_json
from grpo.launch import __main__ as launch
from grpo.launch import resume, run_dir
from grpo.launch.config import Config
from grpo.launch.plan import make_plan
from grpo.retention import saved_steps


def start(setting, **changes: object) -> Config:
    """What the launcher writes before the trainer runs."""
    config = setting.config(**changes)
    setting.run_dir.mkdir()
    run_dir.write(setting.run_dir, "test", config, make_plan(config), {"digest": "d1"})
    return config


@pytest.fixture
def save(setting, make_trainer) -> Callable[..., None]:
    """Write checkpoints of the setting's model, as a run does."""
    flags, model = setting.flags, Architecture.from_config(read_json(Path(setting.flags["pretrain"]) / "config.json"))
    tensors = {}
    for module in adapter_files.attention_modules(model.layers, flags["target_modules"]):
        outer, inner = model.projection(module.rpartition(".")[2])
        tensors[adapter_files.tensor_name(module, "A")] = torch.zeros(flags["lora_rank"], inner)
        tensors[adapter_files.tensor_name(module, "B")] = torch.zeros(outer, flags["lora_rank"])

    def write(*steps: int, place: Path | None = None, is_sealed: bool = False) -> None:
        for step in steps:
            folder = (place or setting.run_dir / "checkpoints") / f"step_{step}"
            make_trainer(folder / "trainer", {name: tuple(tensor.shape) for name, tensor in tensors.items()})
            (folder / "adapter").mkdir()
            save_file(tensors, folder / "adapter" / adapter_files.WEIGHTS)
            LoraConfig(r=flags["lora_rank"], target_modules=flags["target_modules"]).save_pretrained(folder / "adapter")
            for part in checkpoint_digests.PARTS if is_sealed else ():
                checkpoint_digests.write(folder / part)

    return write


def log(folder: Path, name: str, steps: range) -> None:
    (folder / name).write_text("".join(json.dumps({"step": step, "exact_match": 0.5}) + "\n" for step in steps))


def steps_in(file: Path) -> list[int]:
    return [json.loads(line)["step"] for line in file.read_text().splitlines()]


def test_it_continues_from_the_newest_whole_checkpoint(setting, save) -> None:
    start(setting)
    save(10, 20)
    (setting.run_dir / "checkpoints" / ".step_30.partial" / "adapter").mkdir(parents=True)
    config = resume.resolve_resumed(setting.words(), setting.run_dir)
    assert config.args.resume_from == str(setting.run_dir / "checkpoints" / "step_20")
    assert resume.resumed_step(config) == 20


@pytest.mark.parametrize("damage", ["cut", "missing", "foreign", "empty", "partial"])
def test_a_damaged_checkpoint_is_refused_before_anything_is_taken_back(setting, save, damage) -> None:
    start(setting)
    save(10, 20)
    newest = setting.run_dir / "checkpoints" / "step_20"
    file = newest / "trainer" / ("state.pt" if damage == "foreign" else "rank_1.pt")
    partial = torch.load(file) | {"master": [torch.zeros(3)]}
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "missing":
        file.unlink()
    else:
        torch.save({"foreign": {"ranks": 1}, "empty": "", "partial": partial}[damage], file)
    with pytest.raises(resume.ResumeError, match=rf"{file.name} .*: --from-step 10 continues from .* \(whole: 10\)"):
        resume.resolve_resumed(setting.words(), setting.run_dir)
    assert resume.resumed_step(resume.resolve_resumed(setting.words(), setting.run_dir, 10)) == 10  # as it says


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("layers.1.self_attn.", "gaps, projections"),
        ("layers.0.self_attn.k_proj.lora_A", "a half is missing"),
    ],
)
def test_an_adapter_that_lost_tensors_is_refused(setting, save, part, message) -> None:
    start(setting)
    save(10)
    weights = setting.run_dir / "checkpoints" / "step_10" / "adapter" / adapter_files.WEIGHTS
    save_file({name: tensor for name, tensor in load_file(weights).items() if part not in name}, weights)
    with pytest.raises(resume.ResumeError, match=message):
        resume.resolve_resumed(setting.words(), setting.run_dir)


def test_an_adapter_that_is_not_the_trainers_is_refused(setting, save, make_trainer) -> None:
    start(setting)
    save(10)
    trainer = setting.run_dir / "checkpoints" / "step_10" / "trainer"
    trainer.rename(setting.folder / "away")
    make_trainer(trainer, {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (8, 32)})
    with pytest.raises(
        resume.ResumeError, match=r"an adapter that is not its trainer's .*: bring back a copy, or move"
    ):
        resume.resolve_resumed(setting.words(), setting.run_dir)


def test_a_run_without_a_checkpoint_starts_again(setting) -> None:
    start(setting)
    config = resume.resolve_resumed(setting.words(), setting.run_dir)
    assert config.args.resume_from is None
    assert resume.resumed_step(config) == 0
    assert resume.describe(config) == [f"starting at step 0: no checkpoint in {setting.run_dir / 'checkpoints'}"]


def test_what_comes_after_the_checkpoint_is_taken_back(setting, save) -> None:
    start(setting)
    save(10)
    folder, samples = setting.run_dir, setting.run_dir / "samples"
    log(folder, "metrics.jsonl", range(1, 14))
    log(folder, "eval.jsonl", range(0, 13, 2))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 14, "rew')  # the kill
    samples.mkdir()
    for name in ("step_9", "step_10", "step_11", "eval_10", "eval_12"):
        (samples / f"{name}.jsonl").write_text("{}\n")
    config = resume.resolve_resumed(setting.words(actor_learning_rate=1e-4), folder)
    news = resume.take_back(config, folder)
    assert steps_in(folder / "metrics.jsonl") == list(range(1, 11))
    assert steps_in(folder / "eval.jsonl") == [0, 2, 4, 6, 8, 10]
    assert sorted(path.stem for path in samples.iterdir()) == ["eval_10", "step_10", "step_9"]
    assert news[0] == "continuing after step 10"
    assert any("LEARNING_RATE was 1e-06, now 0.0001" in line for line in news)
    entry = json.loads((folder / "resumes.jsonl").read_text())
    assert entry["step"] == 10 and entry["changed"]["actor_learning_rate"] == [1e-6, 1e-4]


def test_other_settings_of_the_judge_are_told(setting, save, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_JUDGE_MODELS", "a b")
    monkeypatch.setenv("GRPO_JUDGE_TRIES", "3")
    start(setting)
    save(10, is_sealed=True)
    monkeypatch.setenv("GRPO_JUDGE_MODELS", "b")
    config = resume.resolve_resumed(setting.words(), setting.run_dir)
    news = resume.take_back(config, setting.run_dir)
    assert news == ["continuing after step 10", "  JUDGE_MODELS was a b, now b"]
    assert json.loads((setting.run_dir / "resumes.jsonl").read_text())["changed"] == {"JUDGE_MODELS": ["a b", "b"]}


def test_settings_that_an_older_run_lacks_had_their_defaults(setting, save, monkeypatch: pytest.MonkeyPatch) -> None:
    start(setting)
    save(10)
    monkeypatch.setenv("GRPO_JUDGE_BASE_URL", "https://generativelanguage.googleapis.com")
    monkeypatch.setenv("GRPO_JUDGE_PROXY", "0")
    assert resume.judge_changes(setting.run_dir) == {}
    monkeypatch.setenv("GRPO_JUDGE_PROXY", "1")
    assert resume.judge_changes(setting.run_dir) == {"JUDGE_PROXY": ("0", "1")}
    monkeypatch.setenv("GRPO_JUDGE_UNFINISHED", "1")
    changes = {"JUDGE_PROXY": ("0", "1"), "JUDGE_UNFINISHED": ("0", "1")}
    assert resume.judge_changes(setting.run_dir) == changes, "an older run judged none without a final answer"


def test_the_same_settings_are_no_change(setting, save) -> None:
    start(setting)
    save(10)
    config = resume.resolve_resumed(setting.words(), setting.run_dir)
    assert resume.changes(config, setting.run_dir) == {}


@pytest.mark.parametrize(
    "changes", [{"lora_rank": 8}, {"target_modules": ["q_proj"]}, {"pretrain": "other"}, {"prompt_data": "other.jsonl"}]
)
def test_another_adapter_model_or_data_file_is_refused(setting, save, make_checkpoint, make_data, changes) -> None:
    start(setting)
    save(10)
    if "pretrain" in changes:
        changes = {"pretrain": make_checkpoint(setting.folder / "other")}
    if "prompt_data" in changes:
        changes = {"prompt_data": make_data(setting.folder / "other.jsonl", 20)}
    with pytest.raises(resume.ResumeError, match="cannot be continued with other settings"):
        resume.resolve_resumed(setting.words(**changes), setting.run_dir)


def test_latest_is_the_newest_run_of_that_name(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "CHECKOUT", tmp_path)
    with pytest.raises(resume.ResumeError, match="no run named tiny"):
        resume.find_run("latest", "tiny")
    for age, name in enumerate(["tiny-20260101-000000", "tiny-20260102-000000", "tiny-large-20260103-000000"]):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        stamp = 1_700_000_000 + age
        os.utime(folder / "config.json", (stamp, stamp))
    assert resume.find_run("latest", "tiny").name == "tiny-20260102-000000"


def test_a_run_that_is_still_going_is_refused(tmp_path) -> None:
    code = "import sys, time, pathlib; from grpo.launch import resume; resume.lock(pathlib.Path(sys.argv[1]))"
    code += "; print('held', flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        with pytest.raises(resume.ResumeError, match="still going"):
            resume.lock(tmp_path)
    finally:
        holder.kill()
        holder.wait()
    resume.lock(tmp_path)


def test_somebody_who_looks_whether_it_is_going_does_not_keep_a_run_from_starting(tmp_path, monkeypatch) -> None:
    (tmp_path / run_state.LOCK).touch()
    looking = os.open(tmp_path / run_state.LOCK, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN))
    resume.lock(tmp_path)
    assert run_state.is_held(tmp_path)


def test_of_two_starts_in_one_directory_the_second_is_refused(setting, monkeypatch, capsys) -> None:
    words = ["launch", "run", "--run-dir", str(setting.run_dir), "--", *setting.words()]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(launch.preflight, "problems", lambda *_, **__: [])
    setting.run_dir.mkdir()
    held = resume.lock(setting.run_dir)
    assert launch.main() == launch.REFUSED
    assert "still going" in capsys.readouterr().err
    os.close(held)


@pytest.mark.parametrize(("code", "state"), [(0, "finished"), (130, "stopped"), (1, "crashed")])
def test_a_run_that_ends_leaves_word_of_how(setting, monkeypatch, code, state) -> None:
    def supervise(*_, **__) -> int:
        assert run_state.Run(setting.run_dir).state == "running"
        return code

    monkeypatch.setattr(sys, "argv", ["launch", "run", "--run-dir", str(setting.run_dir), "--", *setting.words()])
    monkeypatch.setattr(launch.preflight, "problems", lambda *_, **__: [])
    monkeypatch.setattr(launch.preflight, "patch_status", lambda: {"digest": "d1"})
    monkeypatch.setattr(launch, "supervise", supervise)
    held = []
    monkeypatch.setattr(resume, "lock", lambda folder, lock=resume.lock: held.append(lock(folder)) or held[-1])
    assert launch.main() == code
    os.close(held[0])  # as the end of the process does
    run = run_state.Run(setting.run_dir)
    assert (run.state, run.code) == (state, code)


def test_training_data_that_was_changed_in_place_is_refused(setting, save, make_data) -> None:
    start(setting)
    save(10)
    make_data(Path(setting.flags["prompt_data"]), 21)
    with pytest.raises(resume.ResumeError, match=r"train.jsonl was changed .* start a new run"):
        resume.resolve_resumed(setting.words(), setting.run_dir)
    make_data(Path(setting.flags["prompt_data"]), 20)
    make_data(Path(setting.flags["eval_dataset"]), 7)  # held-out problems may be others
    assert resume.resumed_step(resume.resolve_resumed(setting.words(), setting.run_dir)) == 10


def test_checkpoints_on_another_disk_are_found_again(setting, save) -> None:
    disk = setting.folder / "disk"
    start(setting, ckpt_path=disk)
    save(30, place=disk)
    config = resume.resolve_resumed(setting.words(), setting.run_dir)  # without CKPT_DIR
    assert config.args.resume_from == str(disk / "step_30")
    for other in (["--ckpt_path", "/other"], ["--ckpt_path=/other"]):
        with pytest.raises(resume.ResumeError, match="CKPT_DIR was"):
            resume.resolve_resumed([*setting.words(), *other], setting.run_dir)


def test_a_run_directory_that_was_moved_is_continued_where_it_is(setting, save) -> None:
    start(setting)
    save(10)
    moved = setting.run_dir.rename(setting.folder / "moved")
    config = resume.resolve_resumed(setting.words(), moved)
    assert config.args.resume_from == str(moved / "checkpoints" / "step_10")
    assert config.args.metrics_dir == str(moved)
    assert resume.changes(config, moved) == {}


def test_a_check_says_where_the_run_would_go_on(setting, save, monkeypatch, capsys) -> None:
    start(setting)
    monkeypatch.setattr(sys, "argv", ["launch", "check", "--resume", str(setting.run_dir), "--", *setting.words()])
    monkeypatch.setattr(launch.preflight, "problems", lambda *_, **__: [])
    assert launch.main() == 0
    assert "starting at step 0: no checkpoint in" in capsys.readouterr().out
    save(10)
    assert launch.main() == 0
    assert "continuing after step 10" in capsys.readouterr().out


def test_two_damaged_floats_are_not_resumed(setting, save) -> None:
    start(setting)
    save(10, 20, is_sealed=True)
    state = setting.run_dir / "checkpoints" / "step_20" / "trainer" / "rank_0.pt"
    content = torch.load(state)
    content["master"][0][:2] = 1e30
    torch.save(content, state)
    with pytest.raises(
        resume.ResumeError, match=r"step_20: trainer/rank_0.pt was changed .*: --from-step 10 continues"
    ):
        resume.resolve_resumed(setting.words(), setting.run_dir)
    with pytest.raises(resume.ResumeError, match=r"rank_0.pt was changed .*: --from-step 10 continues"):
        resume.resolve_resumed(setting.words(), setting.run_dir, 20)


def test_checkpoints_of_earlier_versions_are_continued_with_a_word(setting, save) -> None:
    start(setting)
    save(10)
    config = resume.resolve_resumed(setting.words(), setting.run_dir)
    (unverified,) = resume.describe(config)[1:]
    assert "step_10 cannot be verified" in unverified
    for part in checkpoint_digests.PARTS:
        checkpoint_digests.write(setting.run_dir / "checkpoints" / "step_10" / part)
    assert resume.describe(config) == ["continuing after step 10"]
    # What a save gives to both parts is not missing in one of them.
    (setting.run_dir / "checkpoints" / "step_10" / "trainer" / checkpoint_digests.NAME).unlink()
    with pytest.raises(resume.ResumeError, match="trainer/SHA256SUMS is missing"):
        resume.resolve_resumed(setting.words(), setting.run_dir)


def test_only_whole_steps_can_be_continued_from(setting, save) -> None:
    start(setting)
    checkpoints = setting.run_dir / "checkpoints"
    with pytest.raises(resume.ResumeError, match="has no step_10: no step is whole"):
        resume.resolve_resumed(setting.words(), setting.run_dir, 10)
    save(10, 20, 30, is_sealed=True)
    (checkpoints / "step_20" / "trainer" / "state.pt").unlink()
    (checkpoints / ".step_40.partial" / "adapter").mkdir(parents=True)
    for step in (15, 40, 0, -10):
        with pytest.raises(resume.ResumeError, match=rf"has no step_{step}: .* \(whole: 10, 30\)"):
            resume.resolve_resumed(setting.words(), setting.run_dir, step)
    with pytest.raises(resume.ResumeError, match=r"trainer/state.pt is missing.* \(whole: 10, 30\)"):
        resume.resolve_resumed(setting.words(), setting.run_dir, 20)


def test_an_earlier_step_gives_up_what_is_newer_and_loses_nothing(setting, save) -> None:
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
    given_up = (checkpoints / "step_20" / "trainer" / "rank_0.pt").read_bytes()

    news = resume.take_back(resume.resolve_resumed(setting.words(), folder, 10), folder)
    assert steps_in(folder / "metrics.jsonl") == steps_in(folder / "eval.jsonl") == list(range(1, 11))
    assert [path.stem for path in samples.iterdir()] == ["step_10"]
    assert saved_steps(checkpoints) == [10]
    (aside,) = checkpoints.glob("set-aside-*")
    assert {path.name for path in aside.iterdir()} == {"step_20", "step_30"}
    assert (aside / "step_20" / "trainer" / "rank_0.pt").read_bytes() == given_up
    assert not (folder / "final").exists() and (folder / f"final-{aside.name}" / "adapter_config.json").is_file()
    assert all(any(f"{name} was newer and is set aside as {folder}" in line for line in news)
               for name in ("step_20", "step_30", "final"))  # fmt: skip
    entry = json.loads((folder / "resumes.jsonl").read_text())
    assert entry["step"] == 10 and entry["set_aside"]["step_30"] == str(aside / "step_30")

    checkpoint._remove(checkpoints, [])  # the clean-up of the next save
    assert {path.name for path in aside.iterdir()} == {"step_20", "step_30"}
    config = resume.resolve_resumed(setting.words(), folder)
    assert resume.resumed_step(config) == 10
    resume.take_back(config, folder)
    assert list(checkpoints.glob("set-aside-*")) == [aside]


def test_a_kill_while_newer_steps_are_set_aside_leaves_the_logs(setting, save, monkeypatch) -> None:
    start(setting)
    save(10, 20, 30)
    log(setting.run_dir, "metrics.jsonl", range(1, 36))
    config = resume.resolve_resumed(setting.words(), setting.run_dir, 10)
    renamed = []

    def rename(old: Path, new: Path, real=Path.rename) -> None:
        if renamed:
            raise KeyboardInterrupt
        renamed.append(real(old, new))

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "rename", rename)
        resume.take_back(config, setting.run_dir)
    assert len(steps_in(setting.run_dir / "metrics.jsonl")) == 35
    assert saved_steps(setting.run_dir / "checkpoints") == [10, 20]
    resume.take_back(resume.resolve_resumed(setting.words(), setting.run_dir, 10), setting.run_dir)
    assert saved_steps(setting.run_dir / "checkpoints") == [10]
    assert len(steps_in(setting.run_dir / "metrics.jsonl")) == 10


def test_a_check_of_an_earlier_step_changes_nothing(setting, save, monkeypatch, capsys) -> None:
    start(setting)
    save(10, 20, is_sealed=True)
    log(setting.run_dir, "metrics.jsonl", range(1, 25))
    before = {path: path.stat().st_mtime_ns for path in setting.run_dir.rglob("*")}
    words = ["launch", "check", "--resume", str(setting.run_dir), "--from-step", "10", "--", *setting.words()]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(launch.preflight, "problems", lambda *_, **__: [])
    assert launch.main() == 0
    said = capsys.readouterr().out
    assert "continuing after step 10" in said and "newer, would be set aside: step_20" in said
    assert {path: path.stat().st_mtime_ns for path in setting.run_dir.rglob("*")} == before
