import argparse
import functools

import pytest

from grpo.environments.settings import AGENT
from grpo.flags.upstream import trainer_parser
from grpo.launch import flags, rollout_flags
from grpo.stack.problem import UserError

GOOD = {
    "attn_implementation": "eager", "lora_rank": 64, "zero_stage": 3, "gradient_checkpointing": True,
    "gradient_checkpointing_use_reentrant": True, "vllm_num_engines": 2, "vllm_tensor_parallel_size": 2,
    "actor_num_gpus_per_node": 4, "init_kl_coef": 0, "generate_max_len": 3072, "prompt_max_len": 8,
    "save_steps": 20, "eval_steps": 10, "eval_dataset": "eval.jsonl", "advantage_estimator": "dr_grpo",
    "rollout_batch_size": 8, "enable_prefix_caching": True,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
}  # fmt: skip
SHARED = {
    "actor_shard": "engine", "colocate_all_models": True, "vllm_num_engines": 4, "vllm_tensor_parallel_size": 1
}  # fmt: skip
CORRECTED = {"enable_vllm_is_correction": True}


@functools.cache
def read_defaults() -> dict[str, object]:
    return vars(trainer_parser().parse_args([]))


def make_arguments(**changes) -> argparse.Namespace:
    return argparse.Namespace(**read_defaults() | GOOD | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"offload": True},
        {"colocate_all_models": True, "vllm_enable_sleep": True},
        SHARED,
        {"thinking_budget": 0, "answer_budget": 2, "max_len": 3080},
        {"agent_func_path": "a.py", "enable_prefix_caching": False, "max_len": 3079},
        {"save_steps": 5},
        {"save_steps": 7, "eval_dataset": None},
        {"eval_steps": -1, "save_steps": -1, "max_norm": 0.0, "eval_temperature": 0.0},
        {"init_kl_coef": 0.001},
        {"gamma": 0.99, "advantage_estimator": "reinforce"},
        {"init_kl_coef": 0.001, "use_kl_loss": True, "kl_estimator": "k3"},
        {**CORRECTED, "advantage_clip": 3.0, "vllm_is_max_kl": 0.05},
        {"old_log_probs": "engine"},
        {"policy_loss_type": "gspo", "loss_aggregation": "sequence_mean"},
        {"policy_loss_type": "cispo", "cispo_max_ratio": 1.0, **CORRECTED},
        {"policy_loss_type": "sapo", "mask_truncated": True},
        {"length_schedule": "1024,2048@50,3072@20%", "overlong_buffer_len": 512},
        {"pipeline": True, "old_log_probs": "engine"},
        {"pipeline": True, **CORRECTED},
    ],
)
def test_what_can_work_is_accepted(changes):
    flags.validate(make_arguments(**changes))


def test_the_parser_knows_our_losses_and_their_defaults():
    args = trainer_parser().parse_args(["--policy_loss_type", "cispo", "--sapo_temperatures", "0.5", "2"])
    assert args.policy_loss_type == "cispo" and args.sapo_temperatures == [0.5, 2.0]
    assert read_defaults()["sapo_temperatures"] == [1.0, 1.05] and read_defaults()["cispo_max_ratio"] == 5.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora_rank": 0}, "set --lora_rank"),
        ({"target_modules": ["experts", "router"]}, "choose from q_proj, k_proj, v_proj, o_proj, experts"),
        ({"expert_rank": 4}, "--expert_rank 4 is for experts in --target_modules"),
        ({"gamma": 0.99}, "--gamma 0.99 has no effect: dr_grpo compares whole rollouts: remove it"),
        ({"length_schedule": "8,3072@50"}, "--length_schedule has 8: .* give 16 or more"),
        ({"template_date": "tomorrow"}, "--template_date is 'tomorrow': give a date such as 2030-01-02"),
        (
            {"dynamic_filtering": True, "dynamic_filtering_reward_range": [1, 0]},
            "reward_range is 1 0: .* smaller one first",
        ),
        ({"gradient_checkpointing_use_reentrant": False}, "reentrant"),
        ({"offload": True, "zero_stage": 2}, "--zero_stage 3"),
        ({"vllm_enable_sleep": True}, "GPUs of their own: remove it, or set --colocate_all_models"),
        ({"colocate_all_models": True, "vllm_num_engines": 1}, "the engines have 2 GPUs and the actor 4 GPUs"),
        (
            {**SHARED, "colocate_all_models": False},
            "needs --colocate_all_models: set --colocate_all_models, or --actor_shard none",
        ),
        (
            {**SHARED, "vllm_num_engines": 2, "vllm_tensor_parallel_size": 2},
            "needs --vllm_tensor_parallel_size 1: set --vllm_tensor_parallel_size 1",
        ),
        ({**SHARED, "experts": "bf16"}, "needs --experts packed: set --experts packed"),
        ({**SHARED, "offload": True}, "--actor_shard engine has no shares"),
        ({"use_kl_loss": True}, "without a coefficient: set --init_kl_coef"),
        ({"init_kl_coef": 0.001, "kl_estimator": "k3"}, "remove it, or add --use_kl_loss"),
        ({"vllm_is_truncated_threshold": [2.0, 0.5], **CORRECTED}, "the lower one first"),
        ({"old_log_probs": "engine", **CORRECTED}, "corrects for the engine twice"),
        ({"pipeline": True}, "set --old_log_probs engine, or add --enable_vllm_is_correction"),
        ({"pipeline": True, "top_p": 0.9, "old_log_probs": "engine"}, "set --top_p 1"),
        ({"pipeline": True, "old_log_probs": "engine", "colocate_all_models": True}, "the same GPUs: remove one"),
        ({"top_p": 0.9, "old_log_probs": "engine"}, "set --top_p 1"),
        ({"top_p": 0.9, "init_kl_coef": 0.001}, "truncates the engine's distribution"),
        ({"vllm_is_max_kl": 0.05}, "add --enable_vllm_is_correction"),
        ({"eps_clip_low_high": [1.0, 0.2]}, "between 0 and 1"),
        ({"policy_loss_type": "gspo"}, "--loss_aggregation sequence_mean"),
        (
            {"policy_loss_type": "cispo", "eps_clip_low_high": [0.2, 0.28]},
            "no effect with --policy_loss_type cispo: remove",
        ),
        ({"policy_loss_type": "sapo", "dual_clip": 3.0}, "--dual_clip has no effect with --policy_loss_type sapo"),
        ({"length_schedule": "1024,2048"}, "nothing says when 2048 begins"),
        ({"length_schedule": "1024,2048@50"}, "--generate_max_len 3072"),
        ({"overlong_buffer_len": 0}, "more than 0"),
        ({"overlong_buffer_len": 2000, "length_schedule": "1024,3072@50"}, "up to the first limit 1024"),
        ({"thinking_budget": 9}, "also set --answer_budget"),
        ({"answer_budget": 9}, "also set --thinking_budget"),
        ({"thinking_budget": -1, "answer_budget": 9}, "give 0 or more"),
        ({"thinking_budget": 9, "answer_budget": 1}, "give 2 or more"),
        ({"thinking_budget": 9, "answer_budget": 9, "agent_func_path": "a.py"}, "remove one of them"),
        ({"thinking_budget": 9, "answer_budget": 9, "enable_prefix_caching": False}, "add --enable_prefix_caching"),
        ({"thinking_budget": 9, "answer_budget": 9, "max_len": 3079}, "remove it"),
        ({"save_steps": 7}, "a multiple of the other"),
    ],
)
def test_unworkable_flags_are_rejected_with_a_remedy(changes, message):
    with pytest.raises(SystemExit, match=message):
        flags.validate(make_arguments(**changes))


@pytest.mark.parametrize(
    "words",
    [
        *("--attn_implementation flash_attention_2", "--advantage_estimator gae", "--steps 0", "--lora_alpha 0"),
        *("--actor_learning_rate nan", "--actor_learning_rate 10", "--top_p 0", "--eval_temperature -1"),
        *("--eps_clip -0.2", "--lr_warmup_ratio 3", "--max_norm nan", "--stage3_param_persistence_threshold -1"),
        *("--eval_steps 0", "--save_steps -2", "--max_ckpt_num 0", "--seed -1", "--dynamic_filtering_batches 0"),
        *("--temperature 0", "--lr_scheduler cosin", "--vllm_gpu_memory_utilization 9", "--init_kl_coef -0.01"),
        *("--parity_limit nan", "--policy_loss_type reinforce", "--cispo_max_ratio 0.9", "--sapo_temperatures 1 0"),
        *("--generate_max_len 8", "--advantage_clip 0", "--vllm_is_max_kl 0", "--dual_clip 1"),
        *(
            "--stop_properly_penalty_coef 2",
            "--overlong_penalty_factor -1",
            "--actor_num_nodes 0",
            "--restarts -1",
            "--hang_minutes inf",
        ),
    ],
)
def test_a_value_out_of_its_range_is_refused_by_name(words):
    with pytest.raises(UserError, match=words.split()[0]):
        trainer_parser().parse_args(words.split())


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_memory_that_processes_cannot_share_is_refused_where_they_do(monkeypatch, name):
    for value, is_refused in (("max_split_size_mb:128,expandable_segments:True", True), ("roundup:1", False)):
        monkeypatch.setenv(name, value)
        assert bool([each for each in flags.problems(make_arguments(**SHARED)) if name in each.what]) == is_refused
        assert not list(flags.problems(make_arguments()))


IN_ENVIRONMENT = {"agent_func_path": str(AGENT)}


@pytest.mark.parametrize(
    "changes",
    [
        *({"loss_aggregation": one} for one in ("sequence_mean", "token_mean", "constant")),
        *({"advantage_estimator": estimator} for estimator in rollout_flags.ROLLOUT_ESTIMATORS),
        {"policy_loss_type": "gspo", "loss_aggregation": "sequence_mean"},
        {"init_kl_coef": 0.001, "use_kl_loss": True, "kl_estimator": "k3"},
        {"max_len": 3080},
    ],
)
def test_an_environment_is_accepted(changes):
    flags.validate(make_arguments(**IN_ENVIRONMENT, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"apply_chat_template": True}, "--apply_chat_template .*: remove it"),
        ({"disable_fast_tokenizer": True}, "--disable_fast_tokenizer .*: remove it"),
        ({"advantage_estimator": "reinforce_baseline"}, "use one of dr_grpo, rloo, group_norm"),
        ({"init_kl_coef": 0.001}, "add --use_kl_loss --kl_estimator k3"),
        ({"stop_properly_penalty_coef": 0.5}, "--stop_properly_penalty_coef .*: remove it"),
        ({"max_len": 3079}, "--max_len 3079 is a smaller context"),
    ],
)
def test_flags_without_meaning_in_an_environment_are_rejected_once(changes, message, monkeypatch):
    with pytest.raises(SystemExit, match=message) as refusal:
        flags.validate(make_arguments(**IN_ENVIRONMENT, **changes))
    assert len(str(refusal.value).splitlines()) == 1
    if "advantage_estimator" in changes:
        return
    monkeypatch.chdir(AGENT.parent)  # in any notation
    with pytest.raises(SystemExit, match=message):
        flags.validate(make_arguments(agent_func_path=AGENT.name, **changes))
    flags.validate(make_arguments(agent_func_path="another/agent.py", **changes))


def test_context_too_small_for_two_reasons_is_reported_once():
    both = {"thinking_budget": 9, "answer_budget": 9, "max_len": 3079}
    assert sum("--max_len" in problem.what for problem in flags.problems(make_arguments(**IN_ENVIRONMENT, **both))) == 1


def test_all_problems_are_listed_at_once():
    with pytest.raises(SystemExit) as refusal:
        flags.validate(make_arguments(lora_rank=0, vllm_enable_sleep=True))
    assert len(str(refusal.value).splitlines()) == 2
