"""What the GPUs of each box hold."""

import pytest

from grpo.launch import fitting, gpu_limits, gpu_memory
from grpo.stack import machine
from grpo.stack.machine import Gpu

from .boxes import SMALL

H200_GB = 140.4  # of 2**30 bytes, as nvidia-smi states its memory


def test_the_plan_lists_the_parts_of_actor_and_engine(configure_box):
    text = "\n".join(gpu_memory.describe(configure_box("8")))
    for part in (
        "85.9 GB each (GPU_GB)", "on each of its 4, at micro-batches of 1 x 4,096 tokens",
        "16.3 GB  frozen base, packed", "adapter", "gradients", "gathered layer", "states between layers",
        "computation of a layer", "unpacked experts", "log-probs, in chunks",
        "tokens fits with MICRO_TRAIN_BATCH_SIZE=1", "32.6 GB  weights", "side path", "key/value cache",
    ):  # fmt: skip
        assert part in text, text


def test_the_key_value_cache_of_the_large_model(configure_box):
    """A token takes keys and values x 8 heads x 64 numbers of bf16 of 18 layers, halved by ENGINE_TP=2."""
    need = gpu_memory.needs(configure_box("8"))
    sequence = (4096 + 128 + 16) * 18 * 2 * 8 * 64 * 2 // 2
    assert need.cache.bytes(4096) == sequence and need.at_once == (77.3e9 - 32.6e9 - 4e9 - 0.1e9) // sequence
    assert (
        gpu_memory.describe_cache(need) == f"{need.at_once} of the longest sequences at once, or one of 131,072 tokens"
    )
    one = gpu_memory.needs(configure_box("8"), vllm_tensor_parallel_size=1)
    assert one.engine_fits and one.at_once < need.at_once / 4


def test_the_memory_of_a_gpu_is_read_given_or_assumed(configure_box, monkeypatch):
    assert gpu_memory.needs(configure_box("8", gpu_gb=None)).gpu == 80 * 2**30
    gpus = [Gpu("A", 40 * 2**30, 0, "8.0"), Gpu("B", 48 * 2**30, 0, "8.9")]
    monkeypatch.setattr(machine, "gpus", lambda: gpus)
    assert gpu_memory.needs(configure_box("8", gpu_gb=None)).gpu == 40 * 2**30
    assert gpu_memory.needs(configure_box("8", gpu_gb=24)).gpu == 24 * 2**30


@pytest.mark.parametrize(("changes", "copies"), [({"actor_shard": "none"}, 1), ({"actor_shard": "zero3"}, 4)])
def test_the_reference_of_a_run_from_an_adapter_is_a_frozen_copy_of_it(configure_box, changes, copies):
    """Rank 64 of q, k, v and o in 36 layers: 47.8 million parameters in bf16. ZeRO-3 leaves each rank a quarter."""
    kl = {"init_kl_coef": 0.001, "use_kl_loss": True, "kl_estimator": "k3"}
    alone, started, without_kl = (
        gpu_memory.needs(configure_box("8", lora_rank=64, **changes, **more))
        for more in (kl, {"adapter": "A", **kl}, {"adapter": "A"})
    )
    assert started.actor_bytes - alone.actor_bytes == started.held - alone.held == 2 * 47_775_744 // copies
    assert without_kl.actor_bytes == alone.actor_bytes


@pytest.mark.parametrize("more", [{}, {"vllm_enable_sleep": True}])
@pytest.mark.parametrize("length", [2048, 4096, 16_384])
def test_a_shared_gpu_holds_both_and_the_share_is_what_the_actor_leaves(configure_box, length, more):
    need = gpu_memory.needs(fitting.choose_engine_share(configure_box("1", length, model=SMALL, gpu_gb=48, **more)))
    beside_update = sum(need.engine.values()) if more else need.engine_limit
    assert need.actor_bytes + beside_update <= need.gpu and need.held + need.engine_limit <= need.gpu
    assert need.engine_limit + gpu_memory.SHARE_STEP * need.gpu > need.left_to_engine, "only rounding is left over"


def test_what_an_actor_holds_between_passes_is_part_of_its_peak(configure_box):
    for gpus in ("8", "2", "1"):
        for changes in ({}, {"adam_offload": None}, {"experts": "bf16", "offload": True, "actor_shard": "zero3"}):
            need = gpu_memory.needs(configure_box(gpus, **changes))
            assert 0 < need.held < need.actor_bytes


def test_sleep_lengthens_the_longest_sequence(configure_box):
    awake = gpu_memory.longest(configure_box("1", model=SMALL, gpu_gb=48))
    asleep = gpu_memory.longest(configure_box("1", model=SMALL, gpu_gb=48, vllm_enable_sleep=True))
    assert awake < asleep


def test_the_adapter_in_an_engine_has_the_bytes_of_its_buffers(configure_box):
    """grpo.lora.vllm_lora: A of q, k and v in one buffer, their B on the diagonal of another; A and B of o."""
    rank, hidden, queries, keys, layers = 64, 2880, 4096, 512, 36
    of_qkv = 3 * rank * hidden + (queries + 2 * keys) * 3 * rank
    assert gpu_memory.needs(configure_box("2")).engine["adapter, as a side path"] == 2 * layers * (
        of_qkv + rank * queries + hidden * rank
    )
    # Each of two workers has A of gate_up and B of down whole, and half of the others. A rank of 4 takes the room of 8.
    of_qkv, queries = 3 * rank * hidden + (queries + 2 * keys) // 2 * 3 * rank, queries // 2
    for expert_rank, padded in ((None, 16), (4, 8)):
        sides = gpu_memory.needs(configure_box("8", target_modules=["experts"], expert_rank=expert_rank)).engine
        assert sides["adapter, as a side path"] == 2 * layers * (
            of_qkv + rank * queries + hidden * rank + 128 * padded * (hidden + 2880 + 1440 + hidden)
        )


def test_the_plan_of_a_shared_gpu_says_so(configure_box):
    text = "\n".join(gpu_memory.describe(fitting.choose_engine_share(configure_box("1", model=SMALL, gpu_gb=48))))
    assert "both keep what they hold" in text
    text = "\n".join(
        gpu_memory.describe(
            fitting.choose_engine_share(configure_box("1", model=SMALL, gpu_gb=48, vllm_enable_sleep=True))
        )
    )
    assert "the engine drops its cache for the update" in text


def test_a_gpu_that_is_too_small_holds_no_sequence(configure_box):
    assert "no sequence fits, however short" in "\n".join(gpu_memory.describe(configure_box("2", gpu_gb=24)))


def test_a_rollout_with_branches_has_several_rows(configure_box, monkeypatch):
    from grpo.environments import settings

    for name, value in (("ENVIRONMENT", "retrieval"), ("MAX_BRANCHES", "3")):
        monkeypatch.setenv(f"GRPO_{name}", value)
    assert gpu_memory.needs(configure_box("8", agent_func_path=settings.AGENT)).rows == 4


def test_a_model_for_cpus_or_without_files_has_no_such_plan(setting, tmp_path):
    for config in (setting.make_config(), setting.make_config(pretrain=tmp_path / "absent")):
        assert gpu_memory.describe(config) == list(gpu_limits.problems(config)) == []
