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
        ({"engine_model": "org/absent"}, "ENGINE_MODEL org/absent is neither", "hf download"),
        ({"engine_model": "/absent"}, "ENGINE_MODEL /absent is no folder", "name the folder"),
        ({"lr_scheduler": "cosin"}, "LR_SCHEDULER cosin cannot be used", "use one of constant"),
        ({"init_kl_coef": -0.1}, "KL_COEF -0.1 would pay", "0 or more"),
        ({"use_kl_loss": True}, "without a coefficient", "give KL_COEF"),
        ({"max_steps": -1}, "STEPS -1 trains nothing", "give 1"),
        ({"top_p": 0}, "TOP_P is 0", "give a share above 0"),
        ({"eval_temperature": -1}, "EVAL_TEMPERATURE is -1", "0 or more"),
        ({"eps_clip": -0.2}, "EPS_CLIP is -0.2", "more than 0"),
        ({"lr_warmup_ratio": 3}, "LR_WARMUP_RATIO is 3", "a share from 0 to 1"),
        ({"max_norm": -1}, "MAX_GRAD_NORM is -1", "0 (no clipping)"),
        ({"max_norm": "nan"}, "MAX_GRAD_NORM is nan", "0 (no clipping)"),
        ({"lora_alpha": 0}, "LORA_ALPHA is 0", "1 or more"),
        ({"stage3_param_persistence_threshold": -1}, "PERSISTENCE_THRESHOLD is -1", "0 or more"),
        ({"eval_steps": 0}, "EVAL_STEPS is 0", "-1 for no evaluation"),
        ({"save_steps": -2}, "SAVE_STEPS is -2", "-1 for no checkpoint"),
        ({"max_ckpt_num": 0}, "MAX_CHECKPOINTS is 0", "1 or more"),
        ({"seed": -1}, "SEED is -1", "from 0"),
        ({"remote_rm_url": "/none.py"}, "reward function /none.py does not exist", "REWARD"),
        ({"remote_rm_url": None}, "an eval needs a reward", "REWARD"),
    ],
)
def test_a_bad_value_is_refused(setting, changes: dict[str, object], what: str, remedy: str) -> None:
    problems = setting.problems(**changes)
    assert any(what in problem and remedy in problem.split("->")[1] for problem in problems), problems


def test_what_can_be_switched_off_is_no_problem(setting) -> None:
    assert setting.problems(eval_steps=-1, save_steps=-1, max_norm=0, eval_temperature=0) == []
