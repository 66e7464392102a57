"""Names that are no flags here: of other trainers, misspelt ones, and OpenRLHF's flags without effect."""

import difflib
from collections.abc import Collection, Mapping, Sequence

from grpo.stack.problem import UserError

# Of TRL, and of Unsloth, which has TRL's and a few more
TRL = {
    "beta": "--init_kl_coef with --use_kl_loss",
    "dataset_name": "--prompt_data",
    "epsilon": "--eps_clip",
    "epsilon_high": "--eps_clip_low_high LOW HIGH",
    "gradient_accumulation_steps": "--train_batch_size, the rollouts of an optimizer step",
    "importance_sampling_level": "--policy_loss_type gspo for sequences",
    "learning_rate": "--actor_learning_rate",
    "lora_r": "--lora_rank",
    "lora_target_modules": "--target_modules",
    "loss_type": "--loss_aggregation, or --policy_loss_type for cispo and sapo",
    "lr_scheduler_type": "--lr_scheduler",
    "mask_truncated_completions": "--mask_truncated",
    "max_completion_length": "--generate_max_len",
    "max_grad_norm": "--max_norm",
    "max_prompt_length": "--prompt_max_len",
    "max_steps": "--steps",
    "model_name_or_path": "--pretrain",
    "num_generations": "--n_samples_per_prompt",
    "num_iterations": "--max_epochs",
    "num_train_epochs": "--num_episodes",
    "output_dir": "--run-dir",
    "per_device_train_batch_size": "--micro_train_batch_size",
    "report_to": "--use_wandb, --use_trackio or --use_tensorboard",
    "resume_from_checkpoint": "--resume RUN_DIR",
    "reward_func": "--remote_rm_url FILE",
    "reward_funcs": "--remote_rm_url FILE",
    "scale_rewards": "--advantage_estimator group_norm, or dr_grpo for none",
    "vllm_importance_sampling_correction": "--enable_vllm_is_correction",
    "warmup_ratio": "--lr_warmup_ratio",
    "gpu_memory_utilization": "--vllm_gpu_memory_utilization",
    "max_lora_rank": "--lora_rank",
    "max_seq_length": "--prompt_max_len and --generate_max_len",
    "use_gradient_checkpointing": "--gradient_checkpointing",
}
# By the end of its dotted names
VERL = {
    "adv_estimator": "--advantage_estimator",
    "clip_ratio": "--eps_clip",
    "clip_ratio_high": "--eps_clip_low_high LOW HIGH",
    "custom_reward_function.path": "--remote_rm_url FILE",
    "data.max_prompt_length": "--prompt_max_len",
    "data.max_response_length": "--generate_max_len",
    "data.train_batch_size": "--rollout_batch_size",
    "data.train_files": "--prompt_data",
    "data.val_files": "--eval_dataset",
    "kl_coef": "--init_kl_coef",
    "kl_loss_coef": "--init_kl_coef with --use_kl_loss",
    "loss_agg_mode": "--loss_aggregation",
    "model.path": "--pretrain",
    "lr": "--actor_learning_rate",
    "ppo_epochs": "--max_epochs",
    "ppo_micro_batch_size_per_gpu": "--micro_train_batch_size",
    "ppo_mini_batch_size": "--train_batch_size, in rollouts instead of prompts",
    "rollout.n": "--n_samples_per_prompt",
    "rollout.gpu_memory_utilization": "--vllm_gpu_memory_utilization",
    "rollout.tensor_model_parallel_size": "--vllm_tensor_parallel_size",
    "trainer.n_gpus_per_node": "--actor_num_gpus_per_node",
    "trainer.save_freq": "--save_steps",
    "trainer.test_freq": "--eval_steps",
    "trainer.total_epochs": "--num_episodes",
    "trainer.total_training_steps": "--steps",
}
# What train_grpo.sh reads from the environment
VARIABLES = {
    "MODEL": "pretrain",
    "TRAIN_DATA": "prompt_data",
    "EVAL_DATA": "eval_dataset",
    "REWARD": "remote_rm_url",
    "ENVIRONMENT": "environment",
}
# OpenRLHF's flags that nothing reads here, or that do not work, and why. They keep OpenRLHF's defaults.
_SINKS = "it switches to flash attention, which drops gpt-oss's attention sinks"
_SHARES = "loading and sync assume that each rank holds one share of every parameter"
_REWARD = "there is no reward model: --remote_rm_url names the reward"
_PACKED = "packing batches of varying size drops gpt-oss's attention sinks"
_CRITIC = "there is no critic: groups of rollouts take its place"
GONE = {
    **dict.fromkeys(
        ("critic_learning_rate", "critic_num_gpus_per_node", "critic_num_nodes", "critic_pretrain"), _CRITIC
    ),
    **dict.fromkeys(("freezing_actor_steps", "lambd", "save_value_network", "value_clip"), _CRITIC),
    **dict.fromkeys(("reward_pretrain", "reward_num_nodes", "reward_num_gpus_per_node", "normalize_reward"), _REWARD),
    **dict.fromkeys(("value_head_prefix", "colocate_critic_reward"), _REWARD),
    **dict.fromkeys(("ptx_coef", "perf"), "nothing in OpenRLHF reads it"),
    **dict.fromkeys(("train_max_tokens_per_gpu", "rollout_max_tokens_per_gpu", "use_dynamic_batch"), _PACKED),
    **dict.fromkeys(("packing_samples", "ring_attn_size", "ring_head_stride"), _SINKS),
    **dict.fromkeys(("ds_tensor_parallel_size", "zpg"), _SHARES),
    **dict.fromkeys(("deepcompile", "use_liger_kernel"), "it does not work with gpt-oss"),
    **dict.fromkeys(("prompt_split", "prompt_data_probs"), "--prompt_data is one file"),
    "ref_reward_offload": "there is no second model: the reference is the actor as it started",
    "disable_ds_ckpt": "checkpoints hold the adapter and its optimizer state alone; --save_steps -1 saves none",
    "max_ckpt_mem": "checkpoints are small; --max_ckpt_num limits them",
    "save_hf_ckpt": "each checkpoint has its adapter in PEFT's format; scripts.export_model merges it",
    "ema_beta": "--enable_ema would load a second copy of the model",
    "eval_split": "--eval_dataset is one file",
    "kl_horizon": "--init_kl_coef does not adapt",
    "kl_target": "--init_kl_coef does not adapt: checkpoints do not store it",
    "vllm_sync_backend": "only the adapter goes to the engines, through Ray",
    "vllm_sync_with_ray": "only the adapter goes to the engines, always through Ray",
    "async_train": "its trainer writes no metrics.jsonl or eval.jsonl; --pipeline samples while the actor trains",
    "deepspeed_enable_sleep": "it moves what --offload and --adam_offload keep on the host",
    "enable_ema": "it would load a second copy of the model",
    "load_checkpoint": "it reads DeepSpeed's checkpoints, which contain the whole model; --resume RUN_DIR reads ours",
    "load_in_4bit": "it requantizes an MXFP4 model to NF4",
    "lora_dropout": "the actor's log-probs would differ from those of the engines, which drop nothing",
}
_OWNED = {
    "run_dir": "--run-dir DIR",
    "save_path": "--run-dir DIR",
    "resume_from": "--resume DIR",
    "max_steps": "--steps N",
}
_CLOSE = 0.8  # of difflib's ratio: below it, a suggestion is another word


def explain(unknown: Sequence[str], known: Collection[str]) -> UserError:
    """Return what is wrong with words that the parser does not take.

    Args:
        known: the flags.
    """
    word = next((word for word in unknown if word.startswith("--") or "=" in word), unknown[0])
    name = word.lstrip("+-").partition("=")[0]
    flag = f"--{name}"
    if name in GONE:
        return UserError(f"{flag} is not supported", f"remove it: {GONE[name]}")
    if answer := find_flag(name):
        return UserError(f"{word.partition('=')[0]} is not a flag of this project", f"use {answer}")
    if not word.startswith("--"):
        return UserError(
            f"{word!r} does not belong to a flag", "remove it, or quote the value; --no-NAME turns a switch off"
        )
    close = difflib.get_close_matches(flag, known, n=1, cutoff=_CLOSE)
    remedy = f"did you mean {close[0]}?" if close else "./train_grpo.sh --help lists the flags"
    return UserError(f"a run has no flag {flag}", remedy)


def find_flag(name: str) -> str | None:
    """Return our flag for a name of another trainer."""
    by_end = (flag for end, flag in VERL.items() if f".{name}".endswith(f".{end}"))
    return _OWNED.get(name) or TRL.get(name) or next(by_end, None)


def refuse_variables(environ: Mapping[str, str]) -> None:
    """Raise UserError for a variable with another trainer's name: it would silently have no effect."""
    for name in sorted(environ):
        if name == "OUTPUT_DIR":  # platforms export it for all programs
            continue
        if name.isupper() and (flag := TRL.get(name.lower())):
            raise UserError(f"the variable {name} is not read by this project", f"unset {name}, and use {flag}")
