"""The trainer's own parser with our flags, and what is refused of what it parses."""

import argparse
import functools

import pytest

from grpo.environments.settings import AGENT
from grpo.flags.upstream import trainer_parser
from grpo.launch import flags
from grpo.launch.flags import ROLLOUT_ESTIMATORS
from grpo.stack.problem import UserError

GOOD = """--attn_implementation eager --lora_rank 64 --zero_stage 3 --gradient_checkpointing --vllm_num_engines 2
--gradient_checkpointing_use_reentrant --vllm_tensor_parallel_size 2 --actor_num_gpus_per_node 4 --init_kl_coef 0
--generate_max_len 3072 --prompt_max_len 8 --save_steps 20 --eval_steps 10 --eval_dataset eval.jsonl
--advantage_estimator dr_grpo --enable_prefix_caching --target_modules q_proj k_proj v_proj o_proj"""
SHARED = "--actor_shard engine --colocate_all_models --vllm_num_engines 4 --vllm_tensor_parallel_size 1"
WEIGHTED = "--enable_vllm_is_correction"
IN_ENVIRONMENT = f"--agent_func_path {AGENT}"


make_parser = functools.cache(trainer_parser)


def parse(words: str) -> argparse.Namespace:
    return make_parser().parse_args([*GOOD.split(), *words.split()])


@pytest.mark.parametrize(
    "words",
    [
        *("--offload", "--colocate_all_models --vllm_enable_sleep", SHARED, "--old_log_probs engine"),
        *("--thinking_budget 0 --answer_budget 2 --max_len 3080", "--agent_func_path a.py --max_len 3079"),
        *("--save_steps 5", "--save_steps -1 --eval_steps -1 --max_norm 0", "--init_kl_coef 0.001"),
        *("--gamma 0.99 --advantage_estimator reinforce", "--policy_loss_type gspo --loss_aggregation sequence_mean"),
        "--init_kl_coef 0.001 --use_kl_loss --kl_estimator k3",
        *(f"{WEIGHTED} --advantage_clip 3 --vllm_is_max_kl 0.05", f"{WEIGHTED} --policy_loss_type cispo"),
        *("--pipeline --old_log_probs engine", f"--pipeline {WEIGHTED}", "--policy_loss_type sapo --mask_truncated"),
        "--length_schedule 1024,2048@50,3072@20% --overlong_buffer_len 512",
        *(f"{IN_ENVIRONMENT} --loss_aggregation {kind}" for kind in ("sequence_mean", "token_mean", "constant")),
        *(f"{IN_ENVIRONMENT} --advantage_estimator {estimator}" for estimator in ROLLOUT_ESTIMATORS),
        f"{IN_ENVIRONMENT} --init_kl_coef 0.001 --use_kl_loss --kl_estimator k3 --max_len 3080",
    ],
)
def test_what_can_work_is_accepted(words: str) -> None:
    flags.validate(parse(words))


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("--lora_rank 0", "set --lora_rank"),
        ("--target_modules experts router", "choose from q_proj, k_proj, v_proj, o_proj, experts"),
        ("--expert_rank 4", "remove it"),
        ("--gamma 0.99", "remove it"),
        ("--length_schedule 8,3072@50", "give 16 or more"),
        ("--template_date tomorrow", "2030-01-02"),
        ("--dynamic_filtering --dynamic_filtering_reward_range 1 0", "the smaller one first"),
        ("--offload --zero_stage 2", "--zero_stage 3"),
        ("--vllm_enable_sleep", "set --colocate_all_models"),
        ("--colocate_all_models --vllm_num_engines 1", "make --actor_num_gpus_per_node equal"),
        (SHARED.replace("--colocate_all_models", ""), "set --colocate_all_models, or --actor_shard none"),
        (f"{SHARED} --vllm_num_engines 2 --vllm_tensor_parallel_size 2", "set --vllm_tensor_parallel_size 1"),
        (f"{SHARED} --experts bf16", "set --experts packed"),
        (f"{SHARED} --offload", "set --actor_shard zero3, or --no-offload"),
        ("--use_kl_loss", "set --init_kl_coef"),
        ("--init_kl_coef 0.001 --kl_estimator k3", "add --use_kl_loss"),
        (f"{WEIGHTED} --vllm_is_truncated_threshold 2 0.5", "the lower one first"),
        (f"{WEIGHTED} --old_log_probs engine", "remove one of them"),
        ("--pipeline", "set --old_log_probs engine, or add --enable_vllm_is_correction"),
        ("--pipeline --old_log_probs engine --colocate_all_models", "remove one of them"),
        ("--old_log_probs engine --top_p 0.9", "set --top_p 1"),
        ("--init_kl_coef 0.001 --top_p 0.9", "set --top_p 1"),
        ("--vllm_is_max_kl 0.05", "add --enable_vllm_is_correction"),
        ("--eps_clip_low_high 1.0 0.2", "between 0 and 1"),
        ("--policy_loss_type gspo", "set --loss_aggregation sequence_mean"),
        ("--policy_loss_type cispo --eps_clip_low_high 0.2 0.28", "remove it"),
        ("--policy_loss_type sapo --dual_clip 3", "remove it"),
        ("--length_schedule 1024,2048", "2048@"),
        ("--length_schedule 1024,2048@50", "make the two equal"),
        ("--overlong_buffer_len 0", "more than 0"),
        ("--overlong_buffer_len 2000 --length_schedule 1024,3072@50", "up to the first limit 1024"),
        ("--thinking_budget 9", "set --answer_budget"),
        ("--answer_budget 9", "set --thinking_budget"),
        ("--thinking_budget -1 --answer_budget 9", "give 0 or more"),
        ("--thinking_budget 9 --answer_budget 1", "give 2 or more"),
        ("--thinking_budget 9 --answer_budget 9 --agent_func_path a.py", "remove one of them"),
        ("--thinking_budget 9 --answer_budget 9 --max_len 3079", "remove it"),
        ("--save_steps 7", "a multiple of the other"),
        (f"{IN_ENVIRONMENT} --apply_chat_template", "remove it"),
        (f"{IN_ENVIRONMENT} --disable_fast_tokenizer", "remove it"),
        (f"{IN_ENVIRONMENT} --advantage_estimator reinforce_baseline", "use one of dr_grpo, rloo, group_norm"),
        (f"{IN_ENVIRONMENT} --init_kl_coef 0.001", "add --use_kl_loss --kl_estimator k3"),
        (f"{IN_ENVIRONMENT} --stop_properly_penalty_coef 0.5", "remove it"),
        (f"{IN_ENVIRONMENT} --max_len 3079", "remove it"),
        (f"{IN_ENVIRONMENT} --max_len 3079 --thinking_budget 9 --answer_budget 9", "remove it"),
    ],
)
def test_what_cannot_work_is_refused_once_by_name_with_a_remedy(words: str, remedy: str) -> None:
    [problem] = flags.problems(parse(words))
    named = [word for word in f"{words} --lora_rank adapter".split() if word.startswith("--")]
    assert any(word in f"{problem.what} {problem.remedy}" for word in named) and remedy in problem.remedy


@pytest.mark.parametrize(
    "words",
    [
        *("--attn_implementation flash_attention_2", "--advantage_estimator gae", "--steps 0", "--lora_alpha 0"),
        *("--actor_learning_rate nan", "--actor_learning_rate 10", "--top_p 0", "--eval_temperature -1"),
        *(
            "--eps_clip -0.2",
            "--eps_clip 2",
            "--lr_warmup_ratio 3",
            "--max_norm nan",
            "--stage3_param_persistence_threshold -1",
        ),
        *("--eval_steps 0", "--save_steps -2", "--max_ckpt_num 0", "--seed -1", "--dynamic_filtering_batches 0"),
        *("--temperature 0", "--lr_scheduler cosin", "--vllm_gpu_memory_utilization 9", "--init_kl_coef -0.01"),
        *("--parity_limit nan", "--policy_loss_type reinforce", "--cispo_max_ratio 0.9", "--sapo_temperatures 1 0"),
        *("--generate_max_len 8", "--advantage_clip 0", "--vllm_is_max_kl 0", "--dual_clip 1", "--restarts -1"),
        *("--stop_properly_penalty_coef 2", "--overlong_penalty_factor -1", "--actor_num_nodes 0", "--max_epochs 0"),
        *("--gamma 1.5", "--l2 -0.1", "--adam_betas 0.9 1", "--aux_loss_coef -1", "--temperature 3", "--max_len 0"),
        *("--hang_minutes inf", "--lora_rank many", "--actor_learning_rate 1e-6x", "--prompt_max_len -5"),
    ],
)
def test_a_value_out_of_its_range_is_refused_by_name(words: str) -> None:
    with pytest.raises(UserError, match=words.split()[0]):
        parse(words)


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_memory_that_processes_cannot_share_is_refused_where_they_do(monkeypatch, name: str) -> None:
    monkeypatch.setenv(name, "roundup:1")
    assert not list(flags.problems(parse(SHARED)))
    monkeypatch.setenv(name, "max_split_size_mb:128, expandable_segments: True")
    [problem] = flags.problems(parse(SHARED))
    assert name in problem.what and not list(flags.problems(parse("")))
