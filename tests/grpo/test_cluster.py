from grpo import cluster
from grpo.secrets import is_secret


def test_workers_get_what_they_need_and_no_secret():
    environ = {
        "GRPO_RUN_DIR": "/run",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "PYTHONPATH": "/checkout",
        "DS_ACCELERATOR": "cpu",
        "GEMINI_API_KEY": "secret-1",
        "WANDB_API_KEY": "secret-2",
        "HF_TOKEN": "secret-3",
        "VLLM_API_KEY": "secret-4",
        "HOME": "/home/me",
    }
    variables = cluster.runtime_env(environ)["env_vars"]
    assert "secret" not in str(variables)
    assert "HOME" not in variables
    assert {"GRPO_RUN_DIR", "VLLM_CPU_KVCACHE_SPACE", "PYTHONPATH", "DS_ACCELERATOR"} <= variables.keys()
    # OpenRLHF's own two
    assert variables["TOKENIZERS_PARALLELISM"] == "true"
    assert variables["NCCL_DEBUG"] == "WARN"


def test_secrets_are_told_by_whole_words():
    assert all(map(is_secret, ["HF_TOKEN", "GEMINI_API_KEY", "DB_PASSWORD", "MY_SECRET", "OPENAI_APIKEY"]))
    assert not any(map(is_secret, ["TIKTOKEN_ENCODINGS_BASE", "TOKENIZERS_PARALLELISM", "KEYBOARD", "MONKEY"]))
