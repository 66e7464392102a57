"""Values that cannot be, or not together, are refused with the remedy."""

import argparse
import random
from dataclasses import replace

import pytest

from grpo.launch.checks.batches import check_batches, fitting
from grpo.launch.config import Config


@pytest.mark.parametrize(
    ("changes", "what", "remedy"),
    [
        ({"train_batch_size": 6}, "TRAIN_BATCH_SIZE 6 is not a multiple", "TRAIN_BATCH_SIZE=4"),
        ({"train_batch_size": 2}, "TRAIN_BATCH_SIZE 2 is not a multiple", "TRAIN_BATCH_SIZE=4"),
        (
            {"train_batch_size": 24},
            "64 rollouts, which is not a multiple of",
            "TRAIN_BATCH_SIZE=16",
        ),
        ({"micro_rollout_batch_size": 24}, "cannot be split evenly", "MICRO_ROLLOUT_BATCH_SIZE=16"),
        ({"n_samples_per_prompt": 1, "micro_rollout_batch_size": 2}, "there is only one", "N_SAMPLES_PER_PROMPT=2"),
        (
            {"rollout_batch_size": 24},
            "but a global step needs 24",
            "ROLLOUT_BATCH_SIZE=20, or use more data",
        ),
        ({"generate_max_len": 500}, "is 564 tokens, but the model's context is 512", "lower their sum to 512"),
        ({"vllm_tensor_parallel_size": 3}, "ENGINE_TP 3 does not divide the 4 attention heads", "a divisor"),
        ({"vllm_tensor_parallel_size": 4}, "ENGINE_TP 4 does not divide the 2 key/value heads", "a divisor"),
        ({"prompt_data": None}, "TRAIN_DATA is empty", "data.prepare"),
        ({"prompt_data": "/none.jsonl"}, "TRAIN_DATA: /none.jsonl does not exist", "name a .jsonl file"),
        ({"eval_dataset": "/none.jsonl"}, "EVAL_DATA: /none.jsonl does not exist", "move some lines of TRAIN_DATA"),
        ({"prompt_data": "/data.parquet"}, "is not a .jsonl file", "python -m data.prepare"),
        (
            {"input_key": "question"},
            "'question' is missing or empty (fields: prompt, label, datasource, id)",
            "fix the line",
        ),
        ({"pretrain": "openai/gpt-oss-20b"}, "neither a folder nor a model in the hub's cache", "hf download openai/"),
        ({"pretrain": "org/absent"}, "MODEL org/absent is not on this machine, and only gpt-oss", "use openai/gpt-oss"),
        ({"engine_model": "org/absent"}, "ENGINE_MODEL org/absent is not on this machine", "use openai/gpt-oss-120b"),
        ({"engine_model": "/absent"}, "ENGINE_MODEL /absent is not a folder", "name the folder"),
        ({"lr_warmup_ratio": 1.0}, "optimizer steps of the run would be its warmup", "LR_WARMUP_RATIO=0.03"),
        ({"lr_warmup_ratio": 0.95, "max_steps": 2}, "all 16 optimizer steps", "raise STEPS"),
        ({"eval_steps": 0}, "EVAL_STEPS is 0", "-1 for never"),
        ({"remote_rm_url": "/none.py"}, "/none.py would run unchecked", "REWARD=/none.py"),
        ({"remote_rm_url": None}, "evaluations need a reward", "REWARD"),
    ],
)
def test_a_bad_value_is_refused(setting, changes: dict[str, object], what: str, remedy: str) -> None:
    problems = setting.find_problems(**changes)
    assert any(what in problem and remedy in problem.split("->")[1] for problem in problems), problems


def assume(config: Config, **values: object) -> Config:
    """The configuration with other values of flags, which nobody has checked."""
    return replace(config, args=argparse.Namespace(**vars(config.args) | values))


def test_one_message_names_batch_sizes_that_fit(setting) -> None:
    config = setting.make_config()
    draw = random.Random(0)
    refused = 0
    for prompts in range(1, 200):
        sizes = {name: draw.choice((1, 2, 3, 8, 16, 64)) for name in fitting(config, None)}
        tried = assume(config, **sizes, actor_num_gpus_per_node=draw.choice((1, 2, 3, 4, 8)))
        problems = list(check_batches(tried, prompts))
        assert len(problems) <= 1
        refused += len(problems)
        assert list(check_batches(assume(tried, **fitting(tried, prompts)), prompts)) == []
        if not problems:
            assert fitting(tried, prompts) == sizes, "what passes stays"
    assert 20 < refused < 199


def test_two_problems_with_the_sizes_of_the_tiny_run(setting) -> None:
    sizes = dict(zip(fitting(setting.make_config(), None), (16, 8, 64, 16, 16), strict=True))
    [problem] = check_batches(setting.make_config(**sizes, actor_num_gpus_per_node=2), 2)
    assert problem.remedy == (
        "set, for example, ROLLOUT_BATCH_SIZE=2 TRAIN_BATCH_SIZE=16 MICRO_TRAIN_BATCH_SIZE=8 "
        "MICRO_ROLLOUT_BATCH_SIZE=8, or use more data"
    )
