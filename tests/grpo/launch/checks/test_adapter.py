"""The adapter that a run starts from."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file

from grpo.checkpoint import adapter_files, digests
from grpo.checkpoint.adapter_files import CONFIG, WEIGHTS
from grpo.flags.parser import Asked
from grpo.launch import resume, run_dir
from grpo.launch.checks import model as checks
from grpo.launch.judge import RunJudge
from grpo.launch.plan import make_plan
from grpo.model import model_files
from grpo.stack.problem import UserError


@pytest.fixture
def adapter(setting, save, tmp_path: Path) -> Path:
    """An adapter of the setting's model, rank and targets, with PEFT's lora_alpha of 8."""
    save(1, target=tmp_path / "other")
    setting.flags["lora_alpha"] = 8
    setting.flags["adapter"] = tmp_path / "other" / "step_1" / "adapter"
    return setting.flags["adapter"]


def configure(**values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps(config | values))

    return change


def break_a_value(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors[next(iter(tensors))][0, 0] = torch.nan
    save_file(tensors, folder / WEIGHTS)


def rename_layers(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file({name.replace("layers.1.", "layers.7."): tensor for name, tensor in tensors.items()}, folder / WEIGHTS)


def test_an_adapter_that_fits_passes(setting, adapter: Path) -> None:
    assert setting.find_problems() == []


def test_what_only_training_reads_passes(setting, adapter: Path) -> None:
    """An adapter of a common trainer, with PEFT's defaults written out."""
    used = {"lora_dropout": 0.1, "init_lora_weights": "gaussian", "exclude_modules": ["lm_head"], "revision": "main"}
    used |= {"task_type": "CAUSAL_LM", "auto_mapping": {"unsloth_fixed": True}, "peft_version": "0.18.0"}
    configure(**LoraConfig().to_dict() | json.loads((adapter / CONFIG).read_text()) | used)(adapter)
    assert setting.find_problems() == []


def test_one_remedy_names_all_settings_that_differ(setting, adapter: Path) -> None:
    [problem] = setting.find_problems(lora_rank=8, lora_alpha=32, target_modules=["q_proj"])
    assert "--lora_rank 4 and not 8, --lora_alpha 8 and not 32" in problem
    assert "set --lora_rank 4 --lora_alpha 8 --target_modules q_proj k_proj v_proj o_proj" in problem


@pytest.mark.parametrize(
    ("damage", "names"),
    [
        (configure(use_rslora=True), "lora_alpha to 16"),
        (configure(use_dora=True), "use_dora"),
        (configure(modules_to_save=["lm_head"]), "modules_to_save"),
        (configure(target_modules=["q_proj", "experts"]), "targets in the base"),
        (configure(rank_pattern={"q_proj": 8}), "rank_pattern"),
        (configure(bias="all"), "bias"),
        (configure(init_lora_weights="pissa"), "init_lora_weights"),
        (configure(layers_to_transform=0), "layers_to_transform"),
        (configure(layers_pattern="layers"), "layers_pattern"),
        (configure(kasa_config={}, velora_config={"rank": 1}), "velora_config"),
        (configure(monteclora_config={"buffer_size": 1}), "monteclora_config"),
        (configure(of_a_later_peft=1.5), "of_a_later_peft"),
        (configure(peft_type="IA3"), "IA3"),
        (break_a_value, "NaN"),
        (rename_layers, "layers.1."),
        (shutil.rmtree, "does not exist"),
    ],
)
def test_what_cannot_be_continued_is_refused_by_name(setting, adapter: Path, damage, names: str) -> None:
    damage(adapter)
    problems = setting.find_problems()
    assert problems and all(problem.startswith("--adapter") for problem in problems)
    assert any(names in problem for problem in problems), problems


def test_an_adapter_in_place_of_the_model_is_refused_with_the_two_settings(setting, adapter: Path) -> None:
    [problem] = setting.find_problems(pretrain=adapter, adapter=None)
    assert problem.startswith(f"MODEL {adapter}") and f"--adapter {adapter}" in problem


def test_a_run_keeps_a_copy_and_a_resume_reads_only_that(setting, adapter: Path, save) -> None:
    config, folder = setting.make_config(), setting.run_dir
    run_dir.write(folder, Asked({}), config, make_plan(config), {}, RunJudge(None, False))
    recorded = json.loads((folder / "config.json").read_text())
    assert recorded["flags"]["adapter"] == str(adapter)
    assert recorded["adapter_sha256"] == run_dir.data_digest(adapter / WEIGHTS)
    copied = adapter_files.read(folder / "start")
    assert (copied.folder / WEIGHTS).read_bytes() == (adapter / WEIGHTS).read_bytes()
    assert digests.is_sealed(copied.folder) and not list(folder.glob(".start*"))

    shutil.rmtree(adapter)
    words = setting.make_words(adapter=None)
    for step in (0, 3):  # without a checkpoint and with one
        if step:
            save(step)
        resumed = resume.resolve_resumed(words, folder)
        assert (resumed.args.adapter, resume.resumed_step(resumed)) == (str(adapter), step)
        assert list(checks.check_adapter(resumed, model_files.read(Path(resumed.args.pretrain)))) == []
        run_dir.write(folder, Asked({}), resumed, make_plan(resumed), {}, RunJudge(None, False))
    with pytest.raises(UserError, match="--adapter was"):
        resume.resolve_resumed(setting.make_words(adapter="/another"), folder)


def test_a_run_without_an_adapter_cannot_continue_with_one(setting, adapter: Path) -> None:
    config = setting.make_config(adapter=None)
    run_dir.write(setting.run_dir, Asked({}), config, make_plan(config), {}, RunJudge(None, False))
    assert not (setting.run_dir / "start").exists()
    with pytest.raises(UserError, match="--adapter was empty"):
        resume.resolve_resumed(setting.make_words(), setting.run_dir)
