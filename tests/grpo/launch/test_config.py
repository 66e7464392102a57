"""The flags of the recipe become the configuration of the trainer."""

import subprocess
import sys
from pathlib import Path

import pytest

from grpo.flags import upstream
from grpo.flags.upstream import trainer_parser
from grpo.stack.problem import UserError


@pytest.mark.stack
def test_parser_is_the_trainers() -> None:
    script = "import runpy, sys; sys.argv = ['t', '--help']; runpy.run_module(%r, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", script % "openrlhf.cli.train_ppo_ray"], capture_output=True, text=True)
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


def test_results_go_into_the_run_directory_or_elsewhere(setting, tmp_path: Path, monkeypatch) -> None:
    args = setting.make_config().args
    assert args.run_dir == args.metrics_dir == str(setting.run_dir)
    assert args.ckpt_path == str(setting.run_dir / "checkpoints") and args.save_path == str(setting.run_dir / "final")
    monkeypatch.chdir(tmp_path)
    args = setting.make_config(ckpt_path="big/disk", metrics_dir=tmp_path / "small").args
    assert (args.ckpt_path, args.metrics_dir) == (str(tmp_path / "big" / "disk"), str(tmp_path / "small"))


UNPATCHED = """
import argparse
import torch_that_is_not_there
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--pretrain")
    args = parser.parse_args()
"""


@pytest.mark.parametrize(("source", "remedy"), [(UNPATCHED, ""), ("", " status"), (None, " status")])
def test_another_openrlhf_is_refused_with_a_remedy(tmp_path, monkeypatch, source: str | None, remedy: str) -> None:
    file = tmp_path / "train_ppo_ray.py"
    if source is not None:
        file.write_text(source)
    monkeypatch.setattr(upstream, "trainer_source", lambda: file)
    with pytest.raises(UserError) as refused:
        trainer_parser()
    assert refused.value.problem.remedy == f"run ./apply_patches.sh{remedy}"
