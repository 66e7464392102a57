"""Which run `--resume` finds, from which checkpoint, and what it refuses and takes back."""

import datetime
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from grpo.checkpoint import digests, trainer_state
from grpo.checkpoint.trainer_state import KINDS
from grpo.launch import __main__ as launch
from grpo.launch import config, resume, run_dir
from grpo.stack.problem import UserError

from .conftest import write_checkpoint, write_data
from .recipe import launch as run_command
from .stopped_run import log, read_steps, start


def test_it_continues_from_the_newest_whole_checkpoint(setting, save) -> None:
    start(setting)
    save(10, 20)
    for name in (".step_30.partial", "step_0032", "step_\u0661\u0662"):
        (setting.run_dir / "checkpoints" / name / "adapter").mkdir(parents=True)
    config = resume.resolve_resumed(setting.make_words(), setting.run_dir)
    assert config.args.resume_from == str(setting.run_dir / "checkpoints" / "step_20")
    assert resume.resumed_step(config) == 20
    assert resume.find_changes(config, setting.run_dir) == {}


@pytest.mark.parametrize("damage", ["cut", "missing", "foreign", "empty", "partial"])
def test_a_damaged_checkpoint_is_kept_beside_the_one_before_it_which_the_run_continues(setting, save, damage) -> None:
    start(setting)
    save(10, 20)
    newest = setting.run_dir / "checkpoints" / "step_20"
    file = newest / "trainer" / ("state.safetensors" if damage == "foreign" else "rank_1.safetensors")
    partial = {
        "layout": trainer_state.read_file(file).get("layout"),
        "random": {},
        **{key: [torch.zeros(3)] for key in KINDS},
    }
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "missing":
        file.unlink()
    else:
        trainer_state.write_file(file, {"foreign": {"ranks": 1}, "empty": "", "partial": partial}[damage])
    log(setting.run_dir, "metrics.jsonl", range(1, 25))
    config = resume.resolve_resumed(setting.make_words(), setting.run_dir)
    assert resume.resumed_step(config) == 10 and f"{newest} is damaged" in "\n".join(resume.describe(config))
    assert newest.is_dir() and len(read_steps(setting.run_dir / "metrics.jsonl")) == 24, "a check changes nothing"
    resume.take_back(config, setting.run_dir)
    [kept] = newest.parent.glob("damaged-step_20-*")
    assert not newest.exists() and (kept / "trainer").is_dir()
    assert read_steps(setting.run_dir / "metrics.jsonl") == list(range(1, 11))
    (newest.with_name("step_10") / "trainer" / "rank_1.safetensors").unlink()
    with pytest.raises(UserError, match="no other checkpoint is complete"):
        resume.resolve_resumed(setting.make_words(), setting.run_dir)


def test_a_byte_that_changed_is_damage_and_a_checkpoint_without_digests_is_continued_with_a_note(setting, save) -> None:
    start(setting)
    save(10, is_sealed=True)
    save(20)
    config = resume.resolve_resumed(setting.make_words(), setting.run_dir)
    assert "step_20 cannot be verified" in resume.describe(config)[1]
    for part in digests.PARTS:
        digests.write(setting.run_dir / "checkpoints" / "step_20" / part)
    assert resume.describe(config) == ["continuing after step 20"]
    state = setting.run_dir / "checkpoints" / "step_20" / "trainer" / "rank_0.safetensors"
    content = bytearray(state.read_bytes())
    content[-1] ^= 1
    state.write_bytes(content)
    assert resume.resumed_step(resume.resolve_resumed(setting.make_words(), setting.run_dir)) == 10


def test_a_batch_of_an_earlier_policy_is_refused_without_a_correction(setting, save) -> None:
    """Resuming a run of --pipeline with the default loss."""
    start(setting)
    save(10, 20)
    file = setting.run_dir / "checkpoints" / "step_20" / "trainer" / "state.safetensors"
    state = trainer_state.read_file(file)
    state["client_states"]["next_batch"] = {"step": 21}
    trainer_state.write_file(file, state)
    with pytest.raises(UserError, match="set --old_log_probs engine"):
        resume.resolve_resumed(setting.make_words(), setting.run_dir)
    for words in (["--old_log_probs", "engine"], ["--enable_vllm_is_correction"]):
        resumed = resume.resolve_resumed([*setting.make_words(), *words], setting.run_dir)
        assert resume.resumed_step(resumed) == 20


def test_the_date_of_a_run_is_that_of_its_start(setting, save, monkeypatch: pytest.MonkeyPatch) -> None:
    today = datetime.date(2029, 12, 31)
    monkeypatch.setattr(config, "datetime", SimpleNamespace(date=SimpleNamespace(today=lambda: today)))
    (setting.folder / "model" / "chat_template.jinja").write_text("{{ strftime_now('%Y-%m-%d') }}")
    start(setting)
    save(10)
    today = datetime.date(2030, 1, 1)
    resumed = resume.resolve_resumed(setting.make_words(), setting.run_dir)
    assert resumed.args.template_date == "2029-12-31" and not resume.find_changes(resumed, setting.run_dir)
    assert setting.make_config().args.template_date == "2030-01-01", "another run"


def test_what_comes_after_the_checkpoint_is_taken_back(setting, save) -> None:
    start(setting)
    save(10, is_sealed=True)
    folder, samples = setting.run_dir, setting.run_dir / "samples"
    log(folder, "metrics.jsonl", range(1, 14))
    log(folder, "eval.jsonl", range(0, 13, 2))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 14, "rew')  # the kill
    samples.mkdir()
    for name in ("step_9", "step_10", "step_11", "eval_10", "eval_12"):
        (samples / f"{name}.jsonl").write_text("{}\n")
    config = resume.resolve_resumed(setting.make_words(actor_learning_rate=1e-4), folder)
    news = resume.take_back(config, folder)
    assert read_steps(folder / "metrics.jsonl") == list(range(1, 11))
    assert read_steps(folder / "eval.jsonl") == [0, 2, 4, 6, 8, 10]
    assert sorted(path.stem for path in samples.iterdir()) == ["eval_10", "step_10", "step_9"]
    assert news == [
        "continuing after step 10; 3 later steps will be run again",
        "  --actor_learning_rate was 1e-06, now 0.0001",
    ]
    entry = json.loads((folder / "resumes.jsonl").read_text())
    assert entry["step"] == 10 and entry["changed"]["actor_learning_rate"] == [1e-6, 1e-4]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        *(({"lora_rank": 8}, "--lora_rank was 4, now 8"), ({"target_modules": ["q_proj"]}, "--target_modules was")),
        *(({"pretrain": "other"}, "--pretrain was"), ({"prompt_data": "other.jsonl"}, "--prompt_data was")),
        ({"actor_num_gpus_per_node": 2}, "--actor_num_gpus_per_node was 4, now 2"),
    ],
)
def test_what_the_saved_state_depends_on_is_refused_by_name(setting, save, changes, said: str) -> None:
    start(setting)
    save(10)
    write_checkpoint(setting.folder / "other")
    write_data(setting.folder / "other.jsonl", 20)
    paths = {name: setting.folder / value for name, value in changes.items() if name in ("pretrain", "prompt_data")}
    with pytest.raises(UserError, match=said):
        resume.resolve_resumed(setting.make_words(**changes | paths), setting.run_dir)


def test_changes_of_judge_and_reward_are_named(setting, save, monkeypatch, tmp_path: Path) -> None:
    (own := tmp_path / "mine.py").write_text("def reward_func(queries, prompts, labels): ...\n")
    monkeypatch.setenv("GRPO_REWARD_FILES", str(own))
    monkeypatch.setenv("GRPO_JUDGE_MODELS", "a b")
    start(setting)
    save(10, is_sealed=True)
    assert resume.find_changes(setting.make_config(), setting.run_dir) == {}
    monkeypatch.setenv("GRPO_JUDGE_MODELS", "b")
    own.write_text("# edited\n")
    config = resume.resolve_resumed(setting.make_words(), setting.run_dir)
    told = "\n".join(resume.take_back(config, setting.run_dir))
    assert "--judge_models was a b, now b" in told and str(own) in told
    monkeypatch.setenv("GRPO_REWARD_FILES", "/b.py")
    assert resume.find_changes(config, setting.run_dir)["--remote_rm_url"] == (str(own), "/b.py")


def test_a_folder_of_a_run_is_refused_with_the_run(tmp_path) -> None:
    checkpoint = tmp_path / "run" / "checkpoints" / "step_3"
    checkpoint.mkdir(parents=True)
    for name in ("config.json", "command.sh"):
        (tmp_path / "run" / name).touch()
    with pytest.raises(UserError, match=f"give {tmp_path / 'run'},"):
        run_dir.find_run(str(checkpoint))


def test_latest_is_the_newest_run_that_has_not_finished_whatever_its_name(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(run_dir, "CHECKOUT", tmp_path)
    with pytest.raises(UserError, match="--resume DIR"):
        run_dir.find_run("latest")
    ends = {"old": 1, "killed": None, "failed": 1, "finished": 0, "damaged": None}
    for age, (name, code) in enumerate(ends.items()):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{" if name == "damaged" else "{}")
        (folder / "command.sh").touch()
        stamp = 1_700_000_000 + age
        os.utime(folder / "config.json", (stamp, stamp))
        if code is not None:
            (folder / "ends.jsonl").write_text(json.dumps({"time": stamp, "code": code}) + "\n")
    assert run_dir.find_run("latest").name == "failed"
    shutil.rmtree(tmp_path / "runs" / "failed")
    assert run_dir.find_run("latest").name == "killed"
    (tmp_path / "runs" / "finished" / "resumes.jsonl").write_text(json.dumps({"time": 1_800_000_000}) + "\n")
    assert run_dir.find_run("latest").name == "finished", "it was resumed, and that part did not end"


def test_training_data_that_was_changed_in_place_is_refused(setting, save) -> None:
    start(setting)
    save(10)
    write_data(Path(setting.flags["prompt_data"]), 21)
    with pytest.raises(UserError, match=r"train.jsonl was changed .* start a new run"):
        resume.resolve_resumed(setting.make_words(), setting.run_dir)
    write_data(Path(setting.flags["prompt_data"]), 20)
    write_data(Path(setting.flags["eval_dataset"]), 7)  # held-out problems may be others
    assert resume.resumed_step(resume.resolve_resumed(setting.make_words(), setting.run_dir)) == 10


def test_checkpoints_on_another_disk_and_a_moved_run_are_found_again(setting, save) -> None:
    disk = setting.folder / "disk"
    start(setting, ckpt_path=disk)
    save(30, target=disk)
    moved = setting.run_dir.rename(setting.folder / "moved")
    config = resume.resolve_resumed(setting.make_words(), moved)  # without --ckpt_path
    assert config.args.resume_from == str(disk / "step_30") and config.args.metrics_dir == str(moved)
    assert resume.find_changes(config, moved) == {}
    for other in (["--ckpt_path", "/other"], ["--ckpt_path=/other"]):
        with pytest.raises(UserError, match="--ckpt_path was"):
            resume.resolve_resumed([*setting.make_words(), *other], moved)


@pytest.mark.parametrize(
    ("saved", "settings", "said"),
    [
        ((4,), {"actor_learning_rate": 0.05}, "--actor_learning_rate was 1e-06, now 0.05"),
        ((6,), {"max_steps": 6}, "complete: 6 of 6 steps made; raise --steps and --num_episodes"),
    ],
)
def test_a_check_says_where_the_run_would_continue_and_how(setting, save, monkeypatch, capsys, saved, settings, said):
    start(setting)
    save(*saved)
    monkeypatch.setattr(launch.preflight, "problems", lambda *_, **__: [])
    assert launch.main(["--check", "--resume", str(setting.run_dir), *setting.make_launch_words(**settings)]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("text", [None, "{", "[]", '{"sources": 7}', '{"script": 7, "sources": {}}', '{"script": []}'])
def test_what_no_launcher_wrote_is_refused_without_a_traceback(tmp_path, text: str | None) -> None:
    """Nor is a pipe in its place waited for."""
    (tmp_path / "command.sh").write_text("\nFLAGS=(\n--seed 7\n)\n")
    write_or_pipe(tmp_path / "config.json", text)
    assert run_command("--dry-run", "--resume", str(tmp_path)).returncode == 2


@pytest.mark.parametrize("flags", [None, "", "\nFLAGS=(\n)\n", "\nFLAGS=(\n--held\n)\n", "\nFLAGS=(\n--seed '7\n)\n"])
def test_a_damaged_command_is_refused_without_a_traceback(tmp_path, flags: str | None) -> None:
    (tmp_path / "config.json").write_text('{"script": [], "sources": {}}')
    write_or_pipe(tmp_path / "command.sh", flags)
    assert run_command("--dry-run", "--resume", str(tmp_path)).returncode == 2


def write_or_pipe(file: Path, text: str | None) -> None:
    if text is None:
        os.mkfifo(file)
    else:
        file.write_text(text)
