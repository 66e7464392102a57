"""Values that cannot be, or not together, are refused with the remedy."""

import pytest


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
    problems = setting.problems(**changes)
    assert any(what in problem and remedy in problem.split("->")[1] for problem in problems), problems
