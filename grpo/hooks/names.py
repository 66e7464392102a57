"""OpenRLHF's flags from 0.10.2 on, which are dotted, under the names of 0.9.3: `--lora_rank` for `--ds.lora.rank`.

Our code, the table of settings and saved runs know the names of 0.9.3 alone. OpenRLHF's code reads sections,
`args.ds.lora.rank`. Both see one set of values.
"""

import argparse
from typing import Any

DOTTED = {
    "adam_betas": "actor.adam.betas",
    "actor_learning_rate": "actor.adam.lr",
    "l2": "actor.adam.weight_decay",
    "aux_loss_coef": "actor.aux_loss_coef",
    "dual_clip": "actor.dual_clip",
    "entropy_loss_coef": "actor.entropy_coef",
    "eps_clip": "actor.eps_clip",
    "eps_clip_low_high": "actor.eps_clip_low_high",
    "gradient_checkpointing": "actor.gradient_checkpointing_enable",
    "gradient_checkpointing_use_reentrant": "actor.gradient_checkpointing_reentrant",
    "lr_scheduler": "actor.lr_scheduler",
    "lr_warmup_ratio": "actor.lr_warmup_ratio",
    "max_norm": "actor.max_norm",
    "pretrain": "actor.model_name_or_path",
    "actor_num_gpus_per_node": "actor.num_gpus_per_node",
    "actor_num_nodes": "actor.num_nodes",
    "policy_loss_type": "actor.policy_loss_type",
    "advantage_estimator": "algo.advantage.estimator",
    "gamma": "algo.advantage.gamma",
    "lambd": "algo.advantage.lambd",
    "no_advantage_std_norm": "algo.advantage.no_std_norm",
    "dynamic_filtering": "algo.dynamic_filtering_enable",
    "dynamic_filtering_reward_range": "algo.dynamic_filtering_range",
    "kl_estimator": "algo.kl.estimator",
    "kl_horizon": "algo.kl.horizon",
    "init_kl_coef": "algo.kl.init_coef",
    "kl_target": "algo.kl.target",
    "use_kl_loss": "algo.kl.use_loss",
    "disable_ds_ckpt": "ckpt.disable_ds",
    "load_checkpoint": "ckpt.load_enable",
    "max_ckpt_mem": "ckpt.max_mem",
    "max_ckpt_num": "ckpt.max_num",
    "save_path": "ckpt.output_dir",
    "ckpt_path": "ckpt.path",
    "save_hf_ckpt": "ckpt.save_hf",
    "save_steps": "ckpt.save_steps",
    "critic_learning_rate": "critic.adam.lr",
    "freezing_actor_steps": "critic.freezing_steps",
    "critic_pretrain": "critic.model_name_or_path",
    "critic_num_gpus_per_node": "critic.num_gpus_per_node",
    "critic_num_nodes": "critic.num_nodes",
    "save_value_network": "critic.save_value_network",
    "value_clip": "critic.value_clip",
    "apply_chat_template": "data.apply_chat_template",
    "disable_fast_tokenizer": "data.disable_fast_tokenizer",
    "input_key": "data.input_key",
    "input_template": "data.input_template",
    "label_key": "data.label_key",
    "max_len": "data.max_len",
    "max_samples": "data.max_samples",
    "prompt_data": "data.prompt_dataset",
    "prompt_data_probs": "data.prompt_probs",
    "prompt_split": "data.prompt_split",
    "adam_offload": "ds.adam_offload",
    "attn_implementation": "ds.attn_implementation",
    "deepcompile": "ds.deepcompile",
    "deepspeed_enable_sleep": "ds.enable_sleep",
    "grad_accum_dtype": "ds.grad_accum_dtype",
    "load_in_4bit": "ds.load_in_4bit",
    "lora_alpha": "ds.lora.alpha",
    "lora_dropout": "ds.lora.dropout",
    "lora_rank": "ds.lora.rank",
    "target_modules": "ds.lora.target_modules",
    "overlap_comm": "ds.overlap_comm",
    "packing_samples": "ds.packing_samples",
    "param_dtype": "ds.param_dtype",
    "ring_head_stride": "ds.ring_attn_head_stride",
    "ring_attn_size": "ds.ring_attn_size",
    "ds_tensor_parallel_size": "ds.tensor_parallel_size",
    "use_liger_kernel": "ds.use_liger_kernel",
    "use_ds_universal_ckpt": "ds.use_universal_ckpt",
    "value_head_prefix": "ds.value_head_prefix",
    "zero_stage": "ds.zero_stage",
    "zpg": "ds.zpg",
    "eval_dataset": "eval.dataset",
    "eval_n_samples_per_prompt": "eval.n_samples_per_prompt",
    "eval_split": "eval.split",
    "eval_steps": "eval.steps",
    "eval_temperature": "eval.temperature",
    "logging_steps": "logger.logging_steps",
    "use_tensorboard": "logger.tensorboard_dir",
    "wandb_group": "logger.wandb.group",
    "use_wandb": "logger.wandb.key",
    "wandb_org": "logger.wandb.org",
    "wandb_project": "logger.wandb.project",
    "wandb_run_name": "logger.wandb.run_name",
    "ref_num_gpus_per_node": "ref.num_gpus_per_node",
    "ref_num_nodes": "ref.num_nodes",
    "ref_reward_offload": "ref.offload",
    "reward_clip_range": "reward.clip_range",
    "reward_pretrain": "reward.model_name_or_path",
    "normalize_reward": "reward.normalize_enable",
    "reward_num_gpus_per_node": "reward.num_gpus_per_node",
    "reward_num_nodes": "reward.num_nodes",
    "overlong_buffer_len": "reward.overlong_buffer_len",
    "overlong_penalty_factor": "reward.overlong_penalty_factor",
    "remote_rm_url": "reward.remote_url",
    "stop_properly_penalty_coef": "reward.stop_properly_penalty_coef",
    "rollout_batch_size": "rollout.batch_size",
    "generate_max_len": "rollout.max_new_tokens",
    "rollout_max_tokens_per_gpu": "rollout.max_tokens_per_gpu",
    "micro_rollout_batch_size": "rollout.micro_batch_size",
    "n_samples_per_prompt": "rollout.n_samples_per_prompt",
    "temperature": "rollout.temperature",
    "top_p": "rollout.top_p",
    "vllm_generate_batch_size": "rollout.vllm_generate_batch_size",
    "agent_func_path": "train.agent_func_path",
    "async_train": "train.async_enable",
    "async_queue_size": "train.async_queue_size",
    "train_batch_size": "train.batch_size",
    "colocate_actor_ref": "train.colocate_actor_ref",
    "colocate_all_models": "train.colocate_all",
    "colocate_critic_reward": "train.colocate_critic_reward",
    "use_dynamic_batch": "train.dynamic_batch_enable",
    "ema_beta": "train.ema_beta",
    "enable_ema": "train.enable_ema",
    "full_determinism": "train.full_determinism_enable",
    "max_epochs": "train.max_epochs",
    "train_max_tokens_per_gpu": "train.max_tokens_per_gpu",
    "micro_train_batch_size": "train.micro_batch_size",
    "num_episodes": "train.num_episodes",
    "seed": "train.seed",
    "enable_prefix_caching": "vllm.enable_prefix_caching",
    "vllm_enable_sleep": "vllm.enable_sleep",
    "enforce_eager": "vllm.enforce_eager",
    "vllm_gpu_memory_utilization": "vllm.gpu_memory_utilization",
    "vllm_num_engines": "vllm.num_engines",
    "vllm_sync_backend": "vllm.sync_backend",
    "vllm_sync_with_ray": "vllm.sync_with_ray",
    "vllm_tensor_parallel_size": "vllm.tensor_parallel_size",
}
NAMES = {dotted: name for name, dotted in DOTTED.items()}
# Of 0.9.3, where they differ: prompt and response have a limit each, and not one together.
_DEFAULTS = {"max_len": None, "generate_max_len": 1024, "micro_rollout_batch_size": 8, "micro_train_batch_size": 4}
_OTHER_ESTIMATORS = ("flash_reinforce",)  # for prompts with one rollout


def rename_flags(parser: argparse.ArgumentParser) -> None:
    """Give the flags of OpenRLHF's parser names and defaults of 0.9.3; the dotted names stay as aliases.

    Dotted flags without a name belong to what we replace or leave out: they keep their defaults, and the command line
    no longer takes them. Flags of 0.9.3 that our loop reads and OpenRLHF has dropped come back.
    """
    for action in [each for each in parser._actions if "." in each.dest]:
        if action.dest in NAMES:
            action.dest = NAMES[action.dest]
            action.default = _DEFAULTS.get(action.dest, action.default)
            action.option_strings = [f"--{action.dest}"]  # help and errors name no other
            parser._option_string_actions[f"--{action.dest}"] = action
        else:
            for option in action.option_strings:
                del parser._option_string_actions[option]
            action.container._remove_action(action)  # type: ignore[attr-defined]
            parser.set_defaults(**{action.dest: action.default})
    estimators = parser._option_string_actions["--advantage_estimator"]
    estimators.choices = [name for name in estimators.choices or () if name not in _OTHER_ESTIMATORS]
    parser.add_argument("--prompt_max_len", type=int, default=1024, help="tokens of the longest prompt")
    parser.add_argument("--enable_vllm_is_correction", action="store_true", help="weight tokens by trainer / engine")
    parser.add_argument("--vllm_is_correction_type", default="tis", choices=["tis", "icepop", "mis"])
    parser.add_argument("--vllm_is_truncated_threshold", type=float, nargs=2, default=[0.5, 5.0])


def in_sections(args: argparse.Namespace) -> "Arguments":
    """Return the arguments with OpenRLHF's sections. Takes the place of its ``hierarchize``."""
    sectioned = Arguments(**vars(args))
    sectioned.max_len = args.max_len or args.prompt_max_len + args.generate_max_len
    return sectioned


class Arguments(argparse.Namespace):
    """The arguments by the names of 0.9.3. Attributes that it has not are OpenRLHF's sections."""

    def __getattr__(self, name: str) -> Any:
        return _at(self, name)


class Section:
    """A section of the arguments, such as ``args.ds.lora``: reads and writes the arguments themselves."""

    def __init__(self, args: Arguments, path: str) -> None:
        vars(self).update(_args=args, _path=path)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of pickle and copy, which ask before the section has its attributes
            raise AttributeError(name)
        return _at(self._args, f"{self._path}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        path = f"{self._path}.{name}"
        setattr(self._args, NAMES.get(path, path), value)


def _at(args: Arguments, path: str) -> Any:
    name, values = NAMES.get(path, path), vars(args)
    if name in values:
        return values[name]
    if any(known.startswith(f"{path}.") for known in (*NAMES, *values)):
        return Section(args, path)
    raise AttributeError(f"OpenRLHF has no argument {path}")
