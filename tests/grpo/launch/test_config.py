"""The flags of the recipe become the configuration of the trainer."""

import subprocess
import sys
from pathlib import Path

import pytest

from grpo.flags import upstream
from grpo.flags.upstream import trainer_parser
from grpo.launch import config
from grpo.stack.problem import UserError


@pytest.mark.stack
def test_parser_is_the_trainers() -> None:
    script = "import runpy, sys; sys.argv = ['t', '--help']; runpy.run_module(%r, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", script % "openrlhf.cli.train_ppo_ray"], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    flags = {word.strip("[],") for word in done.stdout.split() if word.startswith(("--", "[--"))}
    ours = {option for action in trainer_parser()._actions for option in action.option_strings} - {"-h", "--help"}
    assert len(ours) > 100
    assert ours <= flags


def test_reading_the_parser_imports_neither_torch_nor_ray() -> None:
    script = (
        "import sys; from grpo.flags.upstream import trainer_parser; trainer_parser();"
        "print([name for name in ('torch', 'ray', 'vllm', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_flag_has_a_value(setting) -> None:
    resolved = setting.make_config()
    assert resolved.values["lora_rank"] == 4
    assert resolved.values["gamma"] == 1, "a default of OpenRLHF"
    assert resolved.given["lora_rank"] == 4
    assert "gamma" not in resolved.given


def test_the_last_of_two_flags_wins_and_the_command_has_it_once(setting) -> None:
    resolved = config.resolve(
        [*setting.make_words(), "--lora_rank", "32", "--target_modules", "q_proj"], setting.run_dir
    )
    assert resolved.args.lora_rank == 32
    assert resolved.args.target_modules == ["q_proj"]
    assert resolved.argv.count("--lora_rank") == 1


def test_the_command_line_parses_to_the_same_configuration(setting) -> None:
    resolved = setting.make_config(eps_clip_low_high=[0.2, 0.28], use_kl_loss=True)
    again = vars(trainer_parser().parse_args(resolved.argv))
    # The default contains the current minute.
    assert again | {"wandb_run_name": ""} == vars(resolved.args) | {"wandb_run_name": ""}


def test_results_go_into_the_run_directory_or_elsewhere(setting, tmp_path: Path, monkeypatch) -> None:
    args = setting.make_config().args
    assert args.run_dir == args.metrics_dir == str(setting.run_dir)
    assert args.ckpt_path == str(setting.run_dir / "checkpoints") and args.save_path == str(setting.run_dir / "final")
    monkeypatch.chdir(tmp_path)
    args = setting.make_config(ckpt_path="big/disk", metrics_dir=tmp_path / "small").args
    assert (args.ckpt_path, args.metrics_dir) == (str(tmp_path / "big" / "disk"), str(tmp_path / "small"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lora_rnk", "3"], "no flag --lora_rnk: did you mean --lora_rank?"),
        (["--lora_ran", "3"], "did you mean --lora_rank?"),  # argparse would take it for an abbreviation
        (["--lora_rank", "many"], "--lora_rank: invalid int value: 'many'"),
        (["--actor_learning_rate", "1e-6x"], "--actor_learning_rate: '1e-6x' is not"),
        (["--advantage_estimator", "grpo"], "invalid choice: 'grpo' (choose from 'dr_grpo', "),
        (["--train_batch_size", "0"], "--train_batch_size: 0 is not a whole number from 1 up"),
        (["--prompt_max_len", "-5"], "--prompt_max_len: -5 is not"),
        (["--max_epochs", "0"], "--max_epochs: 0 is not"),
        (["stray"], "'stray' does not belong to a flag"),
    ],
)
def test_a_bad_flag_is_refused(setting, words: list[str], message: str) -> None:
    with pytest.raises(UserError) as refusal:
        config.resolve([*setting.make_words(target_modules=None), *words], setting.run_dir)
    assert message in str(refusal.value)


UNPATCHED = """
import argparse
import torch_that_is_not_there
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--pretrain")
    args = parser.parse_args()
"""


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (UNPATCHED, r"not patched: run \./apply_patches\.sh"),
        ("", "has no main block: is it another OpenRLHF.*apply_patches.sh status"),
        (None, "command line is missing: .*train_ppo_ray.py.*apply_patches.sh status"),
    ],
)
def test_another_openrlhf_is_refused_with_a_remedy(tmp_path, monkeypatch, source: str | None, message: str) -> None:
    file = tmp_path / "train_ppo_ray.py"
    if source is not None:
        file.write_text(source)
    monkeypatch.setattr(upstream, "trainer_source", lambda: file)
    with pytest.raises(UserError, match=message):
        trainer_parser()


def test_the_engines_load_the_model_of_the_actor_unless_told_otherwise(setting, tmp_path: Path) -> None:
    assert setting.make_config().args.engine_model == str(tmp_path / "model")
    (tmp_path / "copy").mkdir()
    assert setting.make_config(engine_model=tmp_path / "copy").args.engine_model == str(tmp_path / "copy")
