"""OpenRLHF's flags from 0.10.2 on, which are dotted, under the names of 0.9.3: `--lora_rank` for `--ds.lora.rank`.

Our code and saved runs know the names of 0.9.3 alone. OpenRLHF's code reads sections,
`args.ds.lora.rank`. Both see one set of values.
"""

import argparse
from typing import Any

# The flags of a section of 0.10.2 by their names in 0.9.3, and where they differ, those in the section.
_SECTIONS = """\
actor: adam_betas=adam.betas actor_learning_rate=adam.lr l2=adam.weight_decay aux_loss_coef dual_clip
actor: entropy_loss_coef=entropy_coef eps_clip eps_clip_low_high gradient_checkpointing=gradient_checkpointing_enable
actor: gradient_checkpointing_use_reentrant=gradient_checkpointing_reentrant lr_scheduler lr_warmup_ratio max_norm
actor: pretrain=model_name_or_path actor_num_gpus_per_node=num_gpus_per_node actor_num_nodes=num_nodes
actor: policy_loss_type
algo: advantage_estimator=advantage.estimator gamma=advantage.gamma lambd=advantage.lambd
algo: no_advantage_std_norm=advantage.no_std_norm dynamic_filtering=dynamic_filtering_enable
algo: dynamic_filtering_reward_range=dynamic_filtering_range kl_estimator=kl.estimator kl_horizon=kl.horizon
algo: init_kl_coef=kl.init_coef kl_target=kl.target use_kl_loss=kl.use_loss
ckpt: disable_ds_ckpt=disable_ds load_checkpoint=load_enable max_ckpt_mem=max_mem max_ckpt_num=max_num
ckpt: save_path=output_dir ckpt_path=path save_hf_ckpt=save_hf save_steps
critic: critic_learning_rate=adam.lr freezing_actor_steps=freezing_steps critic_pretrain=model_name_or_path
critic: critic_num_gpus_per_node=num_gpus_per_node critic_num_nodes=num_nodes save_value_network value_clip
data: apply_chat_template disable_fast_tokenizer input_key input_template label_key max_len max_samples
data: prompt_data=prompt_dataset prompt_data_probs=prompt_probs prompt_split
ds: adam_offload attn_implementation deepcompile deepspeed_enable_sleep=enable_sleep grad_accum_dtype load_in_4bit
ds: lora_alpha=lora.alpha lora_dropout=lora.dropout lora_rank=lora.rank target_modules=lora.target_modules
ds: overlap_comm packing_samples param_dtype ring_head_stride=ring_attn_head_stride ring_attn_size
ds: ds_tensor_parallel_size=tensor_parallel_size use_liger_kernel use_ds_universal_ckpt=use_universal_ckpt
ds: value_head_prefix zero_stage zpg
eval: eval_dataset=dataset eval_n_samples_per_prompt=n_samples_per_prompt eval_split=split eval_steps=steps
eval: eval_temperature=temperature
logger: logging_steps use_tensorboard=tensorboard_dir wandb_group=wandb.group use_wandb=wandb.key wandb_org=wandb.org
logger: wandb_project=wandb.project wandb_run_name=wandb.run_name
ref: ref_num_gpus_per_node=num_gpus_per_node ref_num_nodes=num_nodes ref_reward_offload=offload
reward: reward_clip_range=clip_range reward_pretrain=model_name_or_path normalize_reward=normalize_enable
reward: reward_num_gpus_per_node=num_gpus_per_node reward_num_nodes=num_nodes overlong_buffer_len
reward: overlong_penalty_factor remote_rm_url=remote_url stop_properly_penalty_coef
rollout: rollout_batch_size=batch_size generate_max_len=max_new_tokens rollout_max_tokens_per_gpu=max_tokens_per_gpu
rollout: micro_rollout_batch_size=micro_batch_size n_samples_per_prompt temperature top_p vllm_generate_batch_size
train: agent_func_path async_train=async_enable async_queue_size train_batch_size=batch_size colocate_actor_ref
train: colocate_all_models=colocate_all colocate_critic_reward use_dynamic_batch=dynamic_batch_enable ema_beta
train: enable_ema full_determinism=full_determinism_enable max_epochs train_max_tokens_per_gpu=max_tokens_per_gpu
train: micro_train_batch_size=micro_batch_size num_episodes seed
vllm: enable_prefix_caching vllm_enable_sleep=enable_sleep enforce_eager
vllm: vllm_gpu_memory_utilization=gpu_memory_utilization vllm_num_engines=num_engines vllm_sync_backend=sync_backend
vllm: vllm_sync_with_ray=sync_with_ray vllm_tensor_parallel_size=tensor_parallel_size
"""
NAMES = {  # of 0.9.3, by the dotted ones
    f"{section}.{inside or name}": name
    for section, _, words in (line.partition(": ") for line in _SECTIONS.splitlines())
    for name, _, inside in (word.partition("=") for word in words.split())
}
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
    """The arguments by the names of 0.9.3. Other attributes are OpenRLHF's sections."""

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
