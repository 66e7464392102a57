"""The flags of a run, as OpenRLHF's and our argument parsers make them."""

from typing import Protocol


class Arguments(Protocol):
    """The parsed flags of ``openrlhf.cli.train_ppo_ray``. A flag without a value is None if its type says so."""

    # The model and the adapter
    pretrain: str
    engine_model: str | None
    attn_implementation: str
    experts: str
    actor_shard: str
    lora_rank: int
    lora_alpha: int
    lora_dropout: float
    target_modules: list[str]
    load_in_4bit: bool
    enable_ema: bool
    aux_loss_coef: float
    disable_fast_tokenizer: bool

    # Prompts and the reward
    prompt_data: str
    input_key: str
    label_key: str | None
    apply_chat_template: bool
    reasoning_effort: str | None
    template_variables: str | None
    template_date: str | None
    remote_rm_url: str | None
    agent_func_path: str | None

    # Sampling
    seed: int
    rollout_batch_size: int
    micro_rollout_batch_size: int
    n_samples_per_prompt: int
    prompt_max_len: int
    generate_max_len: int
    max_len: int | None
    length_schedule: str | None
    temperature: float
    top_p: float
    dynamic_filtering: bool
    dynamic_filtering_reward_range: tuple[float, float]  # low and high; the parser gives a list
    dynamic_filtering_batches: int
    retire_after: int | None
    retire_for: int
    drop_repetition: float | None
    drop_gibberish: float | None
    thinking_budget: int | None
    answer_budget: int | None
    thinking_delimiter: str | None

    # Advantages and the loss
    advantage_estimator: str
    gamma: float
    reward_clip_range: tuple[float, float]  # low and high; the parser gives a list
    no_advantage_std_norm: bool
    advantage_clip: float | None
    overlong_buffer_len: float | None
    overlong_penalty_factor: float
    stop_properly_penalty_coef: float | None
    policy_loss_type: str
    loss_aggregation: str
    eps_clip_low_high: tuple[float, float]  # low and high; the parser gives a list
    dual_clip: float | None
    entropy_loss_coef: float | None
    old_log_probs: str
    routing_replay: bool
    pipeline: bool
    partial_rollouts: int
    partial_policies: int
    parity_limit: float
    enable_vllm_is_correction: bool
    vllm_is_correction_type: str
    vllm_is_truncated_threshold: tuple[float, float]  # low and high; the parser gives a list
    use_kl_loss: bool
    init_kl_coef: float
    kl_target: float | None
    kl_estimator: str

    # The optimizer
    train_batch_size: int
    micro_train_batch_size: int
    max_epochs: int
    num_episodes: int
    max_steps: int | None
    actor_learning_rate: float
    lr_scheduler: str
    lr_warmup_ratio: float
    gradient_checkpointing: bool
    gradient_checkpointing_use_reentrant: bool

    # Memory and devices
    actor_num_nodes: int
    actor_num_gpus_per_node: int
    colocate_all_models: bool
    async_train: bool
    zero_stage: int
    stage3_param_persistence_threshold: int | None
    adam_offload: bool
    offload: bool
    deepspeed_enable_sleep: bool
    ds_tensor_parallel_size: int
    ring_attn_size: int
    packing_samples: bool
    use_dynamic_batch: bool
    vllm_num_engines: int
    vllm_tensor_parallel_size: int
    vllm_gpu_memory_utilization: float
    vllm_enable_sleep: bool
    enforce_eager: bool
    enable_prefix_caching: bool

    # Evaluation, logs and checkpoints
    eval_dataset: str | None
    eval_at_start: bool
    eval_steps: float  # a whole number; OpenRLHF makes -1 infinite
    eval_temperature: float
    eval_n_samples_per_prompt: int
    run_dir: str
    metrics_dir: str | None
    log_samples: int | None
    ckpt_path: str
    save_path: str
    save_steps: float  # a whole number; OpenRLHF makes -1 infinite
    max_ckpt_num: int
    load_checkpoint: bool
    resume_from: str | None
    use_tensorboard: str | None
    use_wandb: str | None
    use_trackio: bool
    wandb_org: str | None
    wandb_group: str | None
    wandb_project: str
    wandb_run_name: str
