"""What the GPUs and the host of each box hold."""

import pytest

from grpo.launch import gpu_memory, host_memory
from grpo.launch.plan import make_plan
from grpo.model.released import RELEASED

from .boxes import LARGE, SMALL

FREE = dict.fromkeys(gpu_memory.MICRO_BATCHES)
ONE_GPU = {"actor_num_gpus_per_node": 1, "actor_shard": "none", "vllm_tensor_parallel_size": 1}


def test_the_key_value_cache_of_the_large_model(configure_box):
    """A token takes keys and values x 8 heads x 64 numbers of bf16 of 18 layers, halved by two GPUs."""
    need = gpu_memory.needs(configure_box("8"))
    sequence = (4096 + 128 + 16) * 18 * 2 * 8 * 64 * 2 // 2
    assert need.cache.bytes(4096) == sequence and need.at_once == (77.3e9 - 32.6e9 - 4e9 - 0.1e9) // sequence


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


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 2),  # of 8 rollouts on 4 ranks all that a rank has
        ({"train_batch_size": 64}, 16),
        (ONE_GPU, 2),
        (ONE_GPU | {"length": 16_384}, 1),
        ({"gpu_gb": 25}, 1),
        ({"train_batch_size": 64, "length": 32_768}, 2),
        ({"train_batch_size": 6}, 1),  # does not divide; the preflight refuses it
        ({"model": "absent"}, 1),
    ],
)
def test_a_micro_batch_is_the_largest_divisor_that_fits(configure_box, changes, expected):
    chosen = gpu_memory.choose(configure_box("8", **FREE | changes))
    assert [getattr(chosen.args, name) for name in FREE] == [chosen.given[name] for name in FREE] == [expected] * 2


def test_given_sizes_and_shares_stay(configure_box):
    one = gpu_memory.choose(configure_box("8", **FREE | {"micro_train_batch_size": 1})).args
    assert (one.micro_train_batch_size, one.micro_rollout_batch_size) == (1, 2)
    config = gpu_memory.choose(configure_box("1", model=SMALL, vllm_gpu_memory_utilization=0.4))
    assert config.args.vllm_gpu_memory_utilization == 0.4


def test_host_memory_excludes_parts_not_on_the_host(setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    offloaded, resident = (make_plan(setting.make_config(offload=offload)) for offload in (True, None))
    assert "offloaded model, pinned" in offloaded.host_memory
    assert not any("model" in part or "cache" in part for part in resident.host_memory)
    asleep = make_plan(setting.make_config(vllm_enable_sleep=True, colocate_all_models=True))
    assert asleep.host_bytes - resident.host_bytes >= sum(asleep.architecture.actor_bytes(packed=True).values())
    sharing = {"colocate_all_models": True, "actor_shard": "engine", "offload": None}
    shared = make_plan(setting.make_config(vllm_enable_sleep=True, **sharing))
    assert shared.host_memory == resident.host_memory  # sleep leaves a base that the actor maps on the GPU


def test_the_host_memory_of_the_large_model(configure_box) -> None:
    """In bf16 it takes the 233.7 GB of its parameters, and 1% for rounding; packed it stays on the GPUs."""
    bf16, packed = ({"experts": "bf16", "offload": True}, {"experts": "packed"})
    bf16, packed = (make_plan(configure_box("8", prompt_data="absent", **each)).host_bytes for each in (bf16, packed))
    assert 240e9 < bf16 < 300e9 and packed < 40e9
    sizes = RELEASED[LARGE].actor_bytes(packed=False).values()
    assert host_memory.count_pinned(sizes, 4) < 1.03 * sum(sizes) and host_memory.count_pinned(sizes, 6) > 1.4 * 233e9
