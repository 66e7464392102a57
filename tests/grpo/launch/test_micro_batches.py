"""Micro-batches that no flag sets are as large as fits."""

import pytest

from grpo.launch import micro_batches

FREE = {"micro_train_batch_size": None, "micro_rollout_batch_size": None}
LARGE = {
    "pretrain": "openai/gpt-oss-120b", "engine_model": "openai/gpt-oss-120b", "attn_implementation": "sinks",
    "offload": None, "prompt_max_len": 1024, "generate_max_len": 3072, "gpu_gb": 80, "lora_rank": 64,
}  # fmt: skip
ONE_GPU = {"actor_num_gpus_per_node": 1, "actor_shard": "none", "vllm_tensor_parallel_size": 1}


def sizes(config) -> tuple[int, int]:
    chosen = micro_batches.choose(config)
    words = dict(zip(chosen.argv, chosen.argv[1:], strict=False))
    train, rollout = (int(words[f"--micro_{kind}_batch_size"]) for kind in ("train", "rollout"))
    assert (train, rollout) == (chosen.args.micro_train_batch_size, chosen.args.micro_rollout_batch_size)
    return train, rollout


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 2),  # of 8 samples on 4 ranks all that a rank has
        ({"train_batch_size": 64}, 16),
        (ONE_GPU, 2),
        (ONE_GPU | {"generate_max_len": 15_360}, 1),
        ({"gpu_gb": 25}, 1),
        ({"train_batch_size": 64, "generate_max_len": 31_744}, 2),
        ({"train_batch_size": 6}, 1),  # does not divide; the preflight refuses it
    ],
)
def test_the_largest_divisor_that_fits(setting, changes, expected):
    assert sizes(setting.config(**LARGE | FREE | changes)) == (expected, expected)


def test_given_sizes_stay(setting):
    assert sizes(setting.config(**LARGE | FREE | {"micro_train_batch_size": 1})) == (1, 2)
    config = setting.config(**LARGE)
    assert micro_batches.choose(config) is config


def test_an_unknown_model_gets_one_sample(setting, tmp_path):
    assert sizes(setting.config(**FREE | {"pretrain": tmp_path / "absent"})) == (1, 1)
