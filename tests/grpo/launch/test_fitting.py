"""Micro-batches, and the share of an engine on a shared GPU, that no flag sets are as large as fits."""

import pytest

from grpo.launch import fitting

from . import boxes
from .boxes import SMALL

FREE = dict.fromkeys(fitting.MICRO_BATCHES)
LARGE = {
    "pretrain": boxes.LARGE, "engine_model": boxes.LARGE, "attn_implementation": "sinks",
    "offload": None, "prompt_max_len": 1024, "generate_max_len": 3072, "gpu_gb": 80, "lora_rank": 64,
}  # fmt: skip
ONE_GPU = {"actor_num_gpus_per_node": 1, "actor_shard": "none", "vllm_tensor_parallel_size": 1}


def choose_sizes(config) -> tuple[int, int]:
    chosen = fitting.choose(config)
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
    assert choose_sizes(setting.make_config(**LARGE | FREE | changes)) == (expected, expected)


def test_given_sizes_stay_and_an_unknown_model_gets_one_sample(setting, tmp_path):
    assert choose_sizes(setting.make_config(**LARGE | FREE | {"micro_train_batch_size": 1})) == (1, 2)
    config = setting.make_config(**LARGE)
    assert fitting.choose(config) is config
    assert choose_sizes(setting.make_config(**FREE | {"pretrain": tmp_path / "absent"})) == (1, 1)


def choose_share(config) -> float | None:
    return fitting.choose(config).given.get("vllm_gpu_memory_utilization")


def test_a_longer_sequence_or_a_smaller_gpu_leaves_less_to_an_engine(configure_box):
    large, small = (
        [choose_share(configure_box("1", length, model=SMALL, gpu_gb=gb)) for length in (4096, 32_768)]
        for gb in (80, 32)
    )
    assert 1 > large[0] > large[1] > small[1] > 0 and large[0] > small[0] > small[1]
    # The launcher refuses such a run with the sizes, not for a share that vLLM does not accept.
    assert choose_share(configure_box("1", model=boxes.LARGE, gpu_gb=40, actor_shard="none")) == 0.001


def test_given_shares_and_engines_with_their_own_gpus_stay(configure_box):
    assert choose_share(configure_box("1", model=SMALL, vllm_gpu_memory_utilization=0.4)) == 0.4
    for gpus in ("8", "2"):
        config = configure_box(gpus)
        assert fitting.choose(config) is config
