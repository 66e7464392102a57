"""What fits on the GPUs of each box, and what is refused."""

import pytest

from grpo.launch import gpu_memory
from grpo.launch.preflight import problems_anywhere
from grpo.stack import machine
from grpo.stack.machine import Gpu

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
RECIPE = {
    "offload": None,
    "attn_implementation": "sinks",
    "lora_rank": 64,
    "gpu_gb": 80,
    "prompt_max_len": 1024,
    "vllm_gpu_memory_utilization": 0.9,
}


@pytest.fixture
def box(setting):
    """A function from a box, a length and other flags to the configuration of a released model on it."""

    def config(gpus: str, length: int = 4096, model: str = LARGE, **changes):
        names = {"pretrain": model, "engine_model": model, "generate_max_len": length - 1024}
        return setting.config(**RECIPE | BOXES[gpus] | names | changes)

    return config


def refusals(config) -> list[str]:
    return [str(problem) for problem in gpu_memory.problems(config)]


@pytest.mark.parametrize(("gpus", "lengths"), [("8", (4096, 16_384, 32_768)), ("4", (4096, 32_768)), ("2", (16_384,))])
def test_lengths_that_fit_at_one_sample_a_micro_batch(box, gpus, lengths):
    for length in lengths:
        config = box(gpus, length)
        assert refusals(config) == [] and gpu_memory.longest(config) >= length


@pytest.mark.parametrize("length", [4096, 16_384])
def test_the_small_model_fits_on_gpus_of_24_gb(box, length):
    assert refusals(box("2", length, model=SMALL, gpu_gb=24)) == []


@pytest.mark.parametrize(
    ("gpus", "changes", "what", "remedy"),
    [
        ("4", {"experts": "bf16"}, "the actor needs", "set EXPERTS=packed"),
        ("8", {"gpu_gb": 16}, "the actor needs", "set OFFLOAD=1"),
        ("8", {"length": 32_768, "attn_implementation": "eager"}, "the actor needs", "set ATTN_IMPLEMENTATION=sinks"),
        ("8", {"length": 32_768, "gradient_checkpointing": None}, "the actor needs", "set GRADIENT_CHECKPOINTING=1"),
        ("8", {"actor_shard": "none", "length": 65_536}, "the actor needs", "set ACTOR_SHARD=zero3"),
        ("2", {"micro_train_batch_size": 8}, "the actor needs", "set MICRO_TRAIN_BATCH_SIZE=1"),
        ("2", {"length": 65_536}, "the actor needs", "lower PROMPT_MAX_LEN + GENERATE_MAX_LEN to 32,"),
        ("2", {"gpu_gb": 48}, "an engine may use 46.4 GB", "raise ENGINE_TP, or use GPUs with more memory"),
        ("2", {"length": 131_072}, "an engine may use 77.3 GB", "raise ENGINE_TP, or lower PROMPT_MAX_LEN"),
    ],
)
def test_what_cannot_fit_is_refused_with_a_remedy_that_helps(box, gpus, changes, what, remedy):
    problems = refusals(box(gpus, **changes))
    assert any(what in problem and remedy in problem for problem in problems), problems


def test_one_rank_has_nothing_to_share(box):
    """Partitions of a model on one rank are the whole model."""
    for length in range(32_000, 36_000, 100):
        assert not any("set ACTOR_SHARD=zero3" in each for each in refusals(box("2", length))), length
    assert "use more ACTOR_GPUS with ACTOR_SHARD=zero3" in refusals(box("2", 36_000))[0]


def test_a_length_beyond_the_models_positions_is_refused_with_the_limit(box):
    said = "\n".join(map(str, problems_anywhere(box("2", 140_000))))
    assert "is 140,000 tokens, but the model's context is 131,072" in said and "lower their sum to 131,072" in said
    assert "on each GPU" not in said and "an engine may use" not in said


def test_the_plan_lists_the_parts_of_actor_and_engine(box):
    text = "\n".join(gpu_memory.describe(box("8")))
    for part in (
        "85.9 GB each (GPU_GB)", "on each of its 4, at micro-batches of 1 x 4,096 tokens",
        "16.3 GB  frozen base, packed", "adapter", "gradients", "gathered layer", "states between layers",
        "computation of a layer", "unpacked experts", "log-probs, in chunks",
        "tokens fits with MICRO_TRAIN_BATCH_SIZE=1", "32.6 GB  weights", "side path", "key/value cache",
    ):  # fmt: skip
        assert part in text, text


def test_the_key_value_cache_of_the_large_model(box):
    """Per token 36 layers x keys and values x 8 heads x 64 numbers of bf16, halved by ENGINE_TP=2."""
    need = gpu_memory.needs(box("8"))
    assert need.cache_token == 36 * 2 * 8 * 64 * 2 // 2
    assert need.cache_tokens * need.cache_token == pytest.approx(
        need.engine_limit - sum(need.engine.values()), rel=1e-5
    )


def test_the_memory_of_a_gpu_is_read_given_or_assumed(box, monkeypatch):
    assert gpu_memory.needs(box("8", gpu_gb=None)).gpu == 80 * 2**30
    gpus = [Gpu("A", 40 * 2**30, 0, "8.0"), Gpu("B", 48 * 2**30, 0, "8.9")]
    monkeypatch.setattr(machine, "gpus", lambda: gpus)
    assert gpu_memory.needs(box("8", gpu_gb=None)).gpu == 40 * 2**30
    assert gpu_memory.needs(box("8", gpu_gb=24)).gpu == 24 * 2**30


def test_engine_and_actor_on_one_gpu_are_counted_together(box):
    assert "the actor needs" in refusals(box("8", colocate_all_models=True))[0]


def test_a_rollout_with_branches_has_several_rows(box, monkeypatch):
    from grpo.rollout.multi_turn import settings

    for name, value in (("ENVIRONMENT", "retrieval"), ("MAX_BRANCHES", "3")):
        monkeypatch.setenv(f"GRPO_{name}", value)
    assert gpu_memory.needs(box("8", agent_func_path=settings.AGENT)).rows == 4


def test_a_model_for_cpus_or_without_files_has_no_such_plan(setting, tmp_path):
    for config in (setting.config(), setting.config(pretrain=tmp_path / "absent")):
        assert gpu_memory.describe(config) == refusals(config) == []
