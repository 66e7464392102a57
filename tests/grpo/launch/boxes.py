"""The boxes of `train_grpo.sh --gpus`, as flags."""

LARGE, SMALL = "openai/gpt-oss-120b", "openai/gpt-oss-20b"
BOXES = {
    "8": {"vllm_num_engines": 2, "vllm_tensor_parallel_size": 2, "actor_num_gpus_per_node": 4},
    "4": {"vllm_num_engines": 1, "vllm_tensor_parallel_size": 2, "actor_num_gpus_per_node": 2},
    "2": {
        "vllm_num_engines": 1,
        "vllm_tensor_parallel_size": 1,
        "actor_num_gpus_per_node": 1,
        "actor_shard": "none",
    },
}
BOXES["1"] = BOXES["2"] | {
    "actor_shard": "engine",
    "colocate_all_models": True,
    "vllm_gpu_memory_utilization": None,
}
RECIPE = {
    "offload": None,
    "attn_implementation": "sinks",
    "lora_rank": 64,
    "gpu_gb": 80,
    "enforce_eager": True,
    "prompt_max_len": 1024,
    "vllm_gpu_memory_utilization": 0.9,
}
