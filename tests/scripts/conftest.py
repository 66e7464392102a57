import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GptOssForCausalLM

from grpo.lora import expert_form
from grpo.model import loading
from grpo.model.architecture import ATTENTION_PROJECTIONS
from grpo.run.run_files import RunFiles
from grpo.run.run_log import RunLog

# PEFT's settings for the experts, at the scale of the attention.
OF_EXPERTS = {
    "target_parameters": [f"mlp.{name}" for name in expert_form.PARAMETERS],
    "rank_pattern": dict.fromkeys(expert_form.PARAMETERS, 2),
    "alpha_pattern": dict.fromkeys(expert_form.PARAMETERS, 4),
}


def load_unpacked(base: Path) -> GptOssForCausalLM:
    """Load a model in bf16 whose experts say that their weights are `[E, in, out]`, as those of transformers 5 do."""
    model = loading.load_gpt_oss(base, "eager", packed=False)
    for layer in model.model.layers:
        layer.mlp.experts.is_transposed = True
    return model


def save_adapter(base: Path, folder: Path, **settings) -> Path:
    """Let PEFT write an adapter of `base` with random values."""
    settings = {"r": 4, "lora_alpha": 8, "target_modules": list(ATTENTION_PROJECTIONS)} | settings
    model = get_peft_model(load_unpacked(base), LoraConfig(**settings), autocast_adapter_dtype=False)
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    model.save_pretrained(str(folder))
    return folder


@pytest.fixture(autouse=True)
def reset_log_level() -> Iterator[None]:
    """Commands that show broken lines themselves silence the log of their process, which here is that of all tests."""
    yield
    logging.getLogger("grpo").setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def trained_adapter(checkpoint: Path, tmp_path_factory) -> Path:
    """An adapter of `checkpoint`, as PEFT writes it. Not to be changed."""
    return save_adapter(checkpoint, tmp_path_factory.mktemp("adapter"))


@pytest.fixture
def adapter(trained_adapter: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    return shutil.copytree(trained_adapter, tmp_path / "adapter")


@pytest.fixture
def base(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of `checkpoint` that a test may damage."""
    return shutil.copytree(checkpoint, tmp_path / "base")


@dataclass
class RunFolder:
    """A run directory, written with a run's own classes. A test that holds its lock acts as the launcher."""

    folder: Path
    held: int | None = None

    def step(self, step: int, **status: object) -> None:
        RunLog(str(self.folder)).write_step(step, {"reward": 0.5, "correct": step / 100} | status)

    def evaluate(self, step: int, exact_match: float) -> None:
        result = {"exact_match": exact_match, "ci_low": exact_match - 0.1, "ci_high": exact_match + 0.1, "n": 18}
        RunLog(str(self.folder)).write_eval(step, result | {"seconds": 30.0})

    def hold(self) -> None:
        self.held = RunFiles(self.folder).hold()

    def let_go(self, code: int | None = None) -> None:
        """End the run, with an exit code or killed."""
        if code is not None:
            RunFiles(self.folder).note_end(code)
        if self.held is not None:
            os.close(self.held)
        self.held = None


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[Callable[..., RunFolder]]:
    """Make a run directory with nothing done, of 40 steps and an evaluation after every 10."""
    made = []

    def make(name: str = "tiny-1", **flags: object) -> RunFolder:
        folder = tmp_path / "runs" / name
        (folder / "logs").mkdir(parents=True)
        subfolders = {"metrics_dir": "", "save_path": "final", "ckpt_path": "checkpoints"}
        values = {flag: str(folder / subfolder) for flag, subfolder in subfolders.items()} | {"run_dir": str(folder)}
        values |= {"eval_steps": 10, "eval_dataset": "eval.jsonl"} | flags
        (folder / "config.json").write_text(json.dumps({"flags": values, "plan": {"steps": 40}}))
        (folder / "command.sh").touch()
        made.append(RunFolder(folder))
        return made[-1]

    yield make
    for run in made:
        run.let_go()
