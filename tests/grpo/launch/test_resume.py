"""Which run `--resume` finds, from which checkpoint, and what it refuses and takes back."""

import datetime
import fcntl
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from grpo.checkpoint import adapter_files, state_files
from grpo.checkpoint.trainer_state import KINDS
from grpo.launch import __main__ as launch
from grpo.launch import config, part, resume, run_dir
from grpo.launch.plan import describe, make_plan
from grpo.launch.refusals import REFUSED
from grpo.launch.supervise.watch import End
from grpo.run import run_state
from grpo.run.lost_writes import LOSSY
from grpo.run.run_files import RunFiles
from grpo.run.run_log import RunLog
from grpo.stack.problem import UserError
from reward import settings
from tests.faults import assert_seen, note

from .conftest import write_checkpoint, write_data
from .stopped_run import log, start, steps_in


def test_it_continues_from_the_newest_whole_checkpoint(setting, save) -> None:
    start(setting)
    save(10, 20)
    for name in (".step_30.partial", "step_0032", "step_\u0661\u0662"):
        (setting.run_dir / "checkpoints" / name / "adapter").mkdir(parents=True)
    config = resume.resolve_resumed(setting.words(), setting.run_dir)
    assert config.args.resume_from == str(setting.run_dir / "checkpoints" / "step_20")
    assert resume.resumed_step(config) == 20
    assert resume.find_flag_changes(config, setting.run_dir) == {}


@pytest.mark.parametrize("damage", ["cut", "missing", "foreign", "empty", "partial"])
def test_a_damaged_checkpoint_is_refused_before_anything_is_taken_back(setting, save, damage) -> None:
    start(setting)
    save(10, 20)
    newest = setting.run_dir / "checkpoints" / "step_20"
    file = newest / "trainer" / ("state.safetensors" if damage == "foreign" else "rank_1.safetensors")
    partial = {"layout": state_files.read(file).get("layout"), "random": {}, **{key: [torch.zeros(3)] for key in KINDS}}
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "missing":
        file.unlink()
    else:
        state_files.write(file, {"foreign": {"ranks": 1}, "empty": "", "partial": partial}[damage])
    with pytest.raises(UserError, match=rf"{file.name} .*: --from-step 10 continues from .* \(complete: 10\)"):
        resume.resolve_resumed(setting.words(), setting.run_dir)
    assert resume.resumed_step(resume.resolve_resumed(setting.words(), setting.run_dir, 10)) == 10  # as it says


def test_a_batch_of_an_earlier_policy_is_refused_without_a_correction(setting, save) -> None:
    """Resuming a run of PIPELINE=1 with the default loss."""
    start(setting)
    save(10, 20)
    file = setting.run_dir / "checkpoints" / "step_20" / "trainer" / "state.safetensors"
    state = state_files.read(file)
    state["client_states"]["ahead"] = {"step": 21}
    state_files.write(file, state)
    with pytest.raises(UserError, match="set OLD_LOG_PROBS=engine"):
        resume.resolve_resumed(setting.words(), setting.run_dir)
    for words in (["--old_log_probs", "engine"], ["--enable_vllm_is_correction"]):
        resumed = resume.resolve_resumed([*setting.words(), *words], setting.run_dir)
        assert resume.resumed_step(resumed) == 20
    assert resume.resumed_step(resume.resolve_resumed(setting.words(), setting.run_dir, 10)) == 10


@pytest.mark.parametrize(
    ("part", "message"),
    [("layers.1.self_attn.", "missing projections"), ("layers.0.self_attn.k_proj.lora_A", "only one half")],
)
def test_an_adapter_that_lost_tensors_is_refused(setting, save, part, message) -> None:
    start(setting)
    save(10)
    weights = setting.run_dir / "checkpoints" / "step_10" / "adapter" / adapter_files.WEIGHTS
    save_file({name: tensor for name, tensor in load_file(weights).items() if part not in name}, weights)
    with pytest.raises(UserError, match=message):
        resume.resolve_resumed(setting.words(), setting.run_dir)


def test_an_adapter_that_is_not_the_trainers_is_refused(setting, save, make_trainer) -> None:
    start(setting)
    save(10)
    trainer = setting.run_dir / "checkpoints" / "step_10" / "trainer"
    trainer.rename(setting.folder / "away")
    make_trainer(trainer, {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (8, 32)})
    with pytest.raises(UserError, match=r"adapter and trainer state do not match .*restore a copy, or move"):
        resume.resolve_resumed(setting.words(), setting.run_dir)


def test_the_date_of_a_run_is_that_of_its_start(setting, save, monkeypatch: pytest.MonkeyPatch) -> None:
    today = datetime.date(2029, 12, 31)
    monkeypatch.setattr(config, "datetime", SimpleNamespace(date=SimpleNamespace(today=lambda: today)))
    assert setting.config().args.template_date is None, "this template has no date"
    (setting.folder / "model" / "chat_template.jinja").write_text("{{ strftime_now('%Y-%m-%d') }}")
    start(setting)
    save(10)
    today = datetime.date(2030, 1, 1)
    resumed = resume.resolve_resumed(setting.words(), setting.run_dir)
    assert resumed.args.template_date == "2029-12-31" and not resume.find_flag_changes(resumed, setting.run_dir)
    assert "prompts     say that today is 2029-12-31" in "\n".join(describe(make_plan(resumed), resumed))
    assert "--template_date 2029-12-31" in RunFiles(setting.run_dir).command.read_text()
    assert setting.config().args.template_date == "2030-01-01", "another run"
    other = resume.resolve_resumed(setting.words(template_date="2000-01-01"), setting.run_dir)
    assert resume.find_flag_changes(other, setting.run_dir) == {"template_date": ("2029-12-31", "2000-01-01")}


def test_a_recorded_date_that_is_none_is_not_kept(setting) -> None:
    start(setting)
    file = RunFiles(setting.run_dir).config
    for date in (5, ["2029-12-31"], None):
        recorded = json.loads(file.read_text())
        recorded["flags"]["template_date"] = date
        file.write_text(json.dumps(recorded))
        config = resume.resolve_resumed(setting.words(), setting.run_dir)
        assert config.args.template_date is None and config.args.resume_from is None


@pytest.mark.parametrize("name", ["ends", "resumes"])
def test_what_a_run_appends_to_is_a_file(setting, name) -> None:
    start(setting)
    file = getattr(RunFiles(setting.run_dir), name)
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    with pytest.raises(OSError, match="not a regular file"):
        resume.resolve_resumed(setting.words(), setting.run_dir)


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
    config = resume.resolve_resumed(setting.words(actor_learning_rate=1e-4), folder)
    news = resume.take_back(config, folder)
    assert steps_in(folder / "metrics.jsonl") == list(range(1, 11))
    assert steps_in(folder / "eval.jsonl") == [0, 2, 4, 6, 8, 10]
    assert sorted(path.stem for path in samples.iterdir()) == ["eval_10", "step_10", "step_9"]
    assert news == ["continuing after step 10; steps 11 to 13 are run again", "  LEARNING_RATE was 1e-06, now 0.0001"]
    entry = json.loads((folder / "resumes.jsonl").read_text())
    assert entry["step"] == 10 and entry["changed"]["actor_learning_rate"] == [1e-6, 1e-4]


def test_another_openrlhf_is_named_and_flags_that_only_one_version_has_are_not(setting, save) -> None:
    start(setting)
    save(10, is_sealed=True)
    files = RunFiles(setting.run_dir)
    recorded, versions = json.loads(files.config.read_text()), json.loads(files.environment.read_text())
    recorded["flags"] = {name: value for name, value in recorded["flags"].items() if name not in ("seed", "top_p")}
    files.config.write_text(json.dumps(recorded | {"flags": recorded["flags"] | {"gone": 0.5}}))
    files.environment.write_text(json.dumps(versions | {"packages": {"openrlhf": "0.9.0"}}))
    config = resume.resolve_resumed(setting.words(seed=5), setting.run_dir)
    now = metadata.version("openrlhf")
    news = resume.take_back(config, setting.run_dir)
    assert news[1:] == [f"  OpenRLHF was 0.9.0, now {now}", "  SEED was None, now 5"]
    [entry] = [json.loads(line) for line in files.resumes.read_text().splitlines()]
    assert entry["changed"] == {"OpenRLHF": ["0.9.0", now], "seed": [None, 5]}


def test_a_step_that_is_run_again_and_changed_judge_settings_are_named(setting, save, monkeypatch) -> None:
    monkeypatch.setenv("GRPO_JUDGE_MODELS", "a b")
    monkeypatch.setenv("GRPO_JUDGE_TRIES", "3")
    start(setting)
    save(10, is_sealed=True)
    log(setting.run_dir, "metrics.jsonl", range(1, 12))
    monkeypatch.setenv("GRPO_JUDGE_MODELS", "b")
    config = resume.resolve_resumed(setting.words(), setting.run_dir)
    news = resume.take_back(config, setting.run_dir)
    assert news == ["continuing after step 10; step 11 is run again", "  JUDGE_MODELS was a b, now b"]
    assert resume.describe(config) == ["continuing after step 10"], "once they are taken back"
    assert json.loads((setting.run_dir / "resumes.jsonl").read_text())["changed"] == {"JUDGE_MODELS": ["a b", "b"]}


def test_settings_missing_from_an_older_run_had_their_defaults(setting, save, monkeypatch: pytest.MonkeyPatch) -> None:
    start(setting)
    save(10)
    monkeypatch.setenv("GRPO_JUDGE_BASE_URL", "https://generativelanguage.googleapis.com")
    monkeypatch.setenv("GRPO_JUDGE_PROXY", "0")
    assert resume.find_reward_changes(setting.run_dir) == {}
    monkeypatch.setenv("GRPO_JUDGE_PROXY", "1")
    assert resume.find_reward_changes(setting.run_dir) == {"JUDGE_PROXY": ("0", "1")}
    monkeypatch.setenv("GRPO_JUDGE_UNFINISHED", "1")
    changes = {"JUDGE_PROXY": ("0", "1"), "JUDGE_UNFINISHED": ("0", "1")}
    assert resume.find_reward_changes(setting.run_dir) == changes, "an older run judged none without a final answer"


@pytest.mark.parametrize(
    "changes", [{"lora_rank": 8}, {"target_modules": ["q_proj"]}, {"pretrain": "other"}, {"prompt_data": "other.jsonl"}]
)
def test_another_adapter_model_or_data_file_is_refused(setting, save, changes) -> None:
    start(setting)
    save(10)
    if "pretrain" in changes:
        changes = {"pretrain": write_checkpoint(setting.folder / "other")}
    if "prompt_data" in changes:
        changes = {"prompt_data": write_data(setting.folder / "other.jsonl", 20)}
    with pytest.raises(UserError, match="cannot continue with other settings"):
        resume.resolve_resumed(setting.words(**changes), setting.run_dir)


def test_latest_is_the_newest_run_of_that_name(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_dir, "CHECKOUT", tmp_path)
    with pytest.raises(UserError, match="no run named tiny"):
        run_dir.find_run("latest", "tiny")
    runs = {"tiny-20260101-000000": "tiny", "a-name-of-its-own": "tiny", "tiny-20260103-000000": "tiny-large"}
    for age, (folder_name, name) in enumerate(runs.items()):
        folder = tmp_path / "runs" / folder_name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"name": name}))
        stamp = 1_700_000_000 + age
        os.utime(folder / "config.json", (stamp, stamp))
    damaged = tmp_path / "runs" / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_text("{")
    assert run_dir.find_run("latest", "tiny").name == "a-name-of-its-own"


def test_active_run_is_rejected(tmp_path) -> None:
    code = "import sys, time, pathlib; from grpo.run.run_files import RunFiles; "
    code += "RunFiles(pathlib.Path(sys.argv[1])).hold(); print('held', flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="still running"):
            RunFiles(tmp_path).hold()
    finally:
        holder.kill()
        holder.wait()
    RunFiles(tmp_path).hold()


def test_checking_whether_a_run_is_active_does_not_block_its_start(tmp_path, monkeypatch) -> None:
    files = RunFiles(tmp_path)
    files.lock.touch()
    looking = os.open(files.lock, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN))
    files.hold()
    assert files.is_held()


def test_second_start_in_a_directory_is_rejected(setting, monkeypatch, capsys) -> None:
    monkeypatch.setattr(launch.preflight, "problems", lambda *_, **__: [])
    setting.run_dir.mkdir()
    held = RunFiles(setting.run_dir).hold()
    assert launch.main(["run", "--run-dir", str(setting.run_dir), "--", *setting.words()]) == REFUSED
    assert "still running" in capsys.readouterr().err
    os.close(held)


@pytest.mark.parametrize(("code", "state"), [(0, "finished"), (130, "stopped"), (1, "crashed")])
def test_finished_run_records_how_it_ended(setting, run_with, code, state) -> None:
    def supervise(*_, **__) -> End:
        assert run_state.Run(setting.run_dir).state == "running"
        return End(code)

    assert run_with(supervise) == code
    run = run_state.Run(setting.run_dir)
    assert (run.state, run.code) == (state, code)


def test_a_run_whose_metrics_were_lost_says_so_at_once_and_is_not_done(setting, run_with, capsys) -> None:
    """In step 2 of 3, metrics.jsonl reaches the largest size that a file may have here."""
    metrics, shown = setting.folder / "metrics", []

    def supervise(*_, progress, watch, **__) -> End:
        log = RunLog(str(setting.run_dir), str(metrics))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            for step in (1, 2, 3):
                log.write_step(step, {"reward": 0.5})
                shown.append(progress())
                with (metrics / "metrics.jsonl").open("a") as file:
                    file.write("\n" * (2**20 - file.tell()))
                resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert watch.has_new_steps(), "a SIGTERM saves"
        return End(0)

    assert run_with(supervise, metrics_dir=metrics) == LOSSY
    reason = f"{metrics}/metrics.jsonl: File too large"
    assert shown[0][-1].startswith("step 1")
    assert shown[1:] == [[f"! lost       {n} failed since step 2 (last: {reason}); the run continues"]
                         for n in ("1 write", "2 writes")]  # fmt: skip
    assert_seen("the disk of the metrics fills", shown[1][0])
    note("the disk of the metrics fills", 0.0)
    output = capsys.readouterr().out
    assert f"lost         2 writes failed since step 2 (last: {reason})" in output
    assert "again  " not in output and "not finished" not in output
    run = run_state.Run(setting.run_dir)
    assert (run.state, run.code) == ("finished", LOSSY)


def test_a_finished_run_that_is_resumed_says_that_it_is_finished(setting, save, run_with, capsys) -> None:
    start(setting, max_steps=4)
    save(4)

    def resumed() -> int:
        return run_with(lambda *_, **__: End(0), "--resume", str(setting.run_dir), max_steps=4)

    assert resumed() == 0
    assert "complete: all 4 steps are done" in capsys.readouterr().out
    files = RunFiles(setting.run_dir)
    assert files.resumes.exists(), "its final adapter was missing"
    files.final.mkdir()
    (files.final / adapter_files.CONFIG).touch()
    before = files.ends.read_text(), files.resumes.read_text()
    assert resumed() == 0
    assert (files.ends.read_text(), files.resumes.read_text()) == before
    assert capsys.readouterr().out.startswith("finished: nothing was started\ncomplete: all 4 steps are done")
    assert run_state.Run(setting.run_dir).state == "finished"
    shutil.rmtree(setting.run_dir / "checkpoints")  # as with SAVE_STEPS=-1
    files.metrics.write_text("".join(f'{{"step": {step}}}\n' for step in range(1, 5)))
    assert resumed() == 0
    assert capsys.readouterr().out.startswith("finished: nothing was started\ncomplete: all 4 steps are done")


@pytest.fixture
def run_with(setting, monkeypatch) -> Callable[..., int]:
    """Run the launcher around a stand-in for the supervisor; options of the launcher and other flags may follow."""

    def run(supervise: Callable, *options: str, **flags: object) -> int:
        words = ["run", *(options or ("--run-dir", str(setting.run_dir))), "--", *setting.words(**flags)]
        monkeypatch.setattr(launch.preflight, "problems", lambda *_, **__: [])
        monkeypatch.setattr(launch.preflight, "patch_status", lambda: {"digest": "d1"})
        monkeypatch.setattr(part, "supervise", supervise)
        held = []
        with monkeypatch.context() as patch:
            patch.setattr(RunFiles, "hold", lambda files, hold=RunFiles.hold: held.append(hold(files)) or held[-1])
            code = launch.main(words)
        os.close(held[0])  # as the end of the process does
        return code

    return run


def test_training_data_that_was_changed_in_place_is_refused(setting, save) -> None:
    start(setting)
    save(10)
    write_data(Path(setting.flags["prompt_data"]), 21)
    with pytest.raises(UserError, match=r"train.jsonl was changed .* start a new run"):
        resume.resolve_resumed(setting.words(), setting.run_dir)
    write_data(Path(setting.flags["prompt_data"]), 20)
    write_data(Path(setting.flags["eval_dataset"]), 7)  # held-out problems may be others
    assert resume.resumed_step(resume.resolve_resumed(setting.words(), setting.run_dir)) == 10


def test_checkpoints_on_another_disk_are_found_again(setting, save) -> None:
    disk = setting.folder / "disk"
    start(setting, ckpt_path=disk)
    save(30, target=disk)
    config = resume.resolve_resumed(setting.words(), setting.run_dir)  # without CKPT_DIR
    assert config.args.resume_from == str(disk / "step_30")
    for other in (["--ckpt_path", "/other"], ["--ckpt_path=/other"]):
        with pytest.raises(UserError, match="CKPT_DIR was"):
            resume.resolve_resumed([*setting.words(), *other], setting.run_dir)


def test_moved_run_directory_is_continued_in_place(setting, save) -> None:
    start(setting)
    save(10)
    moved = setting.run_dir.rename(setting.folder / "moved")
    config = resume.resolve_resumed(setting.words(), moved)
    assert config.args.resume_from == str(moved / "checkpoints" / "step_10")
    assert config.args.metrics_dir == str(moved)
    assert resume.find_flag_changes(config, moved) == {}


@pytest.mark.parametrize(
    ("saved", "settings", "said", "last"),
    [
        ((), {}, "has no checkpoint", "ready:"),
        ((4,), {"actor_learning_rate": 0.5}, "  LEARNING_RATE was 1e-06, now 0.5", "ready:"),
        ((6,), {}, "after step 6", "complete: all 6 steps are done; raise NUM_EPISODES to continue"),
        ((4,), {"max_steps": 4}, "after step 4", "complete: all 4 steps are done; raise STEPS to continue"),
        (
            (6,),
            {"max_steps": 6},
            "after step 6",
            "complete: all 6 steps are done; raise STEPS and NUM_EPISODES to continue",
        ),
    ],
)
def test_a_check_says_where_the_run_would_continue_and_how(
    setting, save, monkeypatch, capsys, saved, settings, said, last
) -> None:
    start(setting)
    save(*saved)
    monkeypatch.setattr(launch.preflight, "problems", lambda *_, **__: [])
    assert launch.main(["check", "--resume", str(setting.run_dir), "--", *setting.words(**settings)]) == 0
    output = capsys.readouterr().out
    assert said in output and output.splitlines()[-1].startswith(last)


def test_a_changed_reward_of_the_users_own_is_shown(setting, monkeypatch) -> None:
    setting.run_dir.mkdir()
    config = {"judge": settings.variables(), "reward": {"REWARD_FILES": "/a.py", "REWARD_WEIGHTS": "1"}}
    (setting.run_dir / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("GRPO_REWARD_FILES", "/b.py")
    monkeypatch.setenv("GRPO_REWARD_WEIGHTS", "1")
    assert resume.find_reward_changes(setting.run_dir) == {"REWARD_FILES": ("/a.py", "/b.py")}
