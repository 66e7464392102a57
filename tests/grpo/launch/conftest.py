"""A checkpoint of headers and zeros, data files and flags that pass the preflight; each test breaks one of them."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest

from grpo.checkpoint import adapter_files, digests
from grpo.launch import preflight, rendering
from grpo.launch.checks import software
from grpo.launch.config import Config, resolve
from grpo.launch.judge import RunJudge
from grpo.launch.plan import make_plan
from grpo.launch.rendering import Rendered
from grpo.model.architecture import Architecture
from grpo.model.model_files import INDEX, ITEM_BYTES, read_json
from grpo.run.eval_metric import USER_REWARD
from grpo.stack import machine
from grpo.stack.checkout import CHECKOUT
from reward import gemini, settings
from reward.settings import ChainSettings, JudgeSettings

from . import boxes
from .faulty_run import Run

GB = 10**9
CLEAN = {"state": "applied", "applied": 3, "total": 3, "digest": "d", "expected_digest": "d", "message": "", "next": ""}

# A judge that could start, and a key that opens nothing.
KEY = "AIza-not-a-real-key-0123456789"
VARIABLES = {
    "JUDGE": "1",
    "JUDGE_MODELS": "first second",
    "CORRECTNESS_WEIGHT": "0.6",
    "QUALITY_WEIGHT": "0.4",
    "JUDGE_FALLBACK": "correctness",
    "JUDGE_UNFINISHED": "1",
    "JUDGE_TRIES": "3",
    "JUDGE_DEADLINE": "240",
    "JUDGE_CALL_TIMEOUT": "90",
    "JUDGE_RPM": "120",
    "JUDGE_CONCURRENCY": "32",
}

CONFIG = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "vocab_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 512,
}


def write_shard(path: Path, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    """Write a safetensors file of zeros: 8 bytes header length, JSON header, data."""
    header, offset = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = offset + math.prod(shape) * ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(offset))


def write_checkpoint(folder: Path, mxfp4: bool = False, **changes: int) -> Path:
    """Write a two-layer gpt-oss checkpoint in two shards; zeros, so it can be looked at but not used."""
    folder.mkdir(parents=True)
    quantization = {"quantization_config": {"quant_method": "mxfp4"}} if mxfp4 else {}
    config = CONFIG | changes | quantization
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "generation_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ tools }}{{ builtin_tools }}{{ messages }}")
    shards: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {}
    for name, shape in Architecture.from_config(config).list_stored().items():
        number = 2 if name.startswith("model.layers.1.") else 1
        dtype = "U8" if name.endswith(("_blocks", "_scales")) else "BF16"
        shards.setdefault(f"model-0000{number}-of-00002.safetensors", {})[name] = (dtype, shape)
    for shard, tensors in shards.items():
        write_shard(folder / shard, tensors)
    weight_map = {name: shard for shard, tensors in shards.items() for name in tensors}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder


HELD_OUT = 218  # 18 of AIME, 200 of MATH


def write_data(path: Path, count: int, first: int = 0) -> Path:
    """Write `count` records of a data file, with plain answers for labels."""
    numbers = range(first, first + count)
    records = [{"prompt": f"{n} + 1?", "label": str(n + 1), "datasource": "test", "id": str(n)} for n in numbers]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_recipe_data(folder: Path) -> dict[str, Path]:
    """Write as many problems as the README's `data.prepare` does; return the flags that name them."""
    held_out = write_data(folder / "held.jsonl", HELD_OUT)
    return {"prompt_data": write_data(folder / "aime.jsonl", 72), "eval_dataset": held_out}


def make_judge(**changes: float) -> RunJudge:
    """Return the judge of `train_grpo.sh`, with other limits."""
    limits = {"tries": 3, "deadline": 240.0, "call_timeout": 90.0, "concurrency": 32}
    chain = ChainSettings(("a",), **limits | {"requests_per_window": 120} | changes)
    return RunJudge(JudgeSettings(chain, 0.6, 0.4, "correctness", True), is_stand_in=False)


@dataclass
class Setting:
    """A run that could start. `flags` are by name; None leaves a flag out, True gives it no value."""

    folder: Path
    flags: dict[str, object] = field(default_factory=dict)

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def make_words(self, **changes: object) -> list[str]:
        words: list[str] = []
        for name, value in (self.flags | changes).items():
            if value is None:
                continue
            words.append(f"--{'steps' if name == 'max_steps' else name}")
            if value is not True:
                words += [str(item) for item in value] if isinstance(value, list) else [str(value)]
        return words

    def make_launch_words(self, **changes: object) -> list[str]:
        """The words of the launcher, which takes the user's file and gives the trainer the one that calls it."""
        own = {"remote_rm_url": self.folder / "reward.py"}
        return self.make_words(**own | changes)

    def make_config(self, **changes: object) -> Config:
        return resolve(self.make_words(**changes), self.run_dir)

    def find_problems(self, **changes: object) -> list[str]:
        """The problems found by the preflight."""
        config = self.make_config(**changes)
        return [str(problem) for problem in preflight.problems(config, make_plan(config), self.run_dir)]


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """What the launcher exports to its workers does not reach the next test."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(autouse=True)
def cpu_stack(environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stack that the tests run on, and no cluster to join."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture
def ample_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that differ between machines; tests of a check set their own."""
    monkeypatch.setattr(preflight, "patch_status", lambda: CLEAN)
    monkeypatch.setattr(software, "pins", dict)
    # The checkpoint's tokenizer is an empty file.
    monkeypatch.setattr(rendering, "render", lambda model, prompts, variables: [Rendered(8, str(p)) for p in prompts])
    monkeypatch.setattr(machine, "memory_available", lambda: 900 * GB)
    monkeypatch.setattr(machine, "shared_memory_free", lambda: 64 * GB)


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    model = write_checkpoint(tmp_path / "model")
    reward = tmp_path / "reward.py"
    reward.write_text("def reward_func(queries, prompts, labels):\n    return 1.0\n")
    monkeypatch.setenv("GRPO_REWARD_FILES", str(reward))
    flags: dict[str, object] = {
        "pretrain": model,
        "experts": "packed",
        "actor_shard": "zero3",
        "thinking_delimiter": "harmony",
        "attn_implementation": "eager",
        "prompt_data": write_data(tmp_path / "train.jsonl", 20),
        "eval_dataset": write_data(tmp_path / "eval.jsonl", 5, first=100),
        "input_key": "prompt",
        "label_key": "label",
        "apply_chat_template": True,
        "remote_rm_url": USER_REWARD,
        "rollout_batch_size": 8,
        "n_samples_per_prompt": 8,
        "micro_rollout_batch_size": 1,
        "prompt_max_len": 64,
        "generate_max_len": 32,
        "advantage_estimator": "dr_grpo",
        "init_kl_coef": 0,
        "loss_aggregation": "token_mean",
        "old_log_probs": "trainer",
        "parity_limit": 0.05,
        "train_batch_size": 8,
        "micro_train_batch_size": 1,
        "num_episodes": 3,
        "lora_rank": 4,
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
        "vllm_num_engines": 2,
        "vllm_tensor_parallel_size": 2,
        "actor_num_gpus_per_node": 4,
        "zero_stage": 3,
        "offload": True,
        "adam_offload": True,
        "gradient_checkpointing": True,
        "gradient_checkpointing_use_reentrant": True,
        "save_steps": 10,
        "max_ckpt_num": 2,
        "eval_steps": 2,
        "eval_at_start": True,
    }
    return Setting(tmp_path, flags)


@pytest.fixture
def configure_box(setting: Setting) -> Callable[..., Config]:
    """A function from a box, a length and other flags to the configuration of a released model on it."""

    def configure(gpus: str, length: int = 4096, model: str = boxes.LARGE, **changes: object) -> Config:
        names = {"pretrain": model, "engine_model": model, "generate_max_len": length - 1024}
        return setting.make_config(**boxes.RECIPE | boxes.BOXES[gpus] | names | changes)

    return configure


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen]:
    """A process of the same user with the same command line as one of the run's."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    yield process
    assert process.poll() is None, "a process that is not ours was ended"
    process.kill()
    process.wait()


@pytest.fixture
def save(setting, make_trainer) -> Callable[..., None]:
    """Write checkpoints of the setting's model, as a run does."""
    import torch  # here, since most tests of the launcher need none of these
    from peft import LoraConfig
    from safetensors.torch import save_file

    flags, model = setting.flags, Architecture.from_config(read_json(Path(setting.flags["pretrain"]) / "config.json"))
    tensors = {}
    for module in adapter_files.list_modules(model.layers, flags["target_modules"]):
        outer, inner = model.projection(module.rpartition(".")[2])
        tensors[adapter_files.tensor_name(module, "A")] = torch.zeros(flags["lora_rank"], inner)
        tensors[adapter_files.tensor_name(module, "B")] = torch.zeros(outer, flags["lora_rank"])

    def write(*steps: int, target: Path | None = None, is_sealed: bool = False) -> None:
        for step in steps:
            folder = (target or setting.run_dir / "checkpoints") / f"step_{step}"
            make_trainer(folder / "trainer", {name: tuple(tensor.shape) for name, tensor in tensors.items()}, 4)
            (folder / "adapter").mkdir()
            save_file(tensors, folder / "adapter" / adapter_files.WEIGHTS)
            LoraConfig(r=flags["lora_rank"], target_modules=flags["target_modules"]).save_pretrained(folder / "adapter")
            for part in digests.PARTS if is_sealed else ():
                digests.write(folder / part)

    return write


@pytest.fixture
def configure(setting, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Config]:
    """The setting with our reward function and a key; settings of the judge by name."""

    def begin(key: str | None = KEY, **changes: str) -> Config:
        for name, value in (VARIABLES | changes).items():
            monkeypatch.setenv(f"GRPO_{name}", value)
        for name in settings.KEY_VARIABLES:
            monkeypatch.delenv(name, raising=False)
        if key:
            monkeypatch.setenv("GEMINI_API_KEY", key)
        monkeypatch.setattr(gemini, "FIND_DELAY", 0.01)
        return setting.make_config(remote_rm_url=CHECKOUT / "reward" / "reward_func.py")

    return begin


@pytest.fixture
def start(setting, save) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(steps: int, faults: list[dict], **flags: object) -> Run:
        save(*range(1, steps + 1), target=setting.folder / "stock", is_sealed=True)
        runs.append(Run(setting, steps, faults, **flags))
        return runs[-1]

    yield begin
    for run in runs:
        run.launcher.terminate()
        run.launcher.wait(timeout=400)
