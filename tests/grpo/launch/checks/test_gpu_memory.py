"""What is refused because a GPU cannot hold it, and whether the remedy helps."""

import pytest

from grpo.launch import gpu_memory
from grpo.launch.checks.machine import check_gpu_memory
from grpo.launch.preflight import problems_anywhere
from grpo.stack import machine
from grpo.stack.machine import Gpu
from tests.grpo.launch.boxes import LARGE, SMALL


def list_refusals(config) -> list[str]:
    return [str(problem) for problem in check_gpu_memory(gpu_memory.choose(config))]


@pytest.mark.parametrize(
    ("gpus", "changes", "what", "remedy"),
    [
        ("4", {"experts": "bf16"}, "the actor needs", "set --experts packed"),
        ("8", {"gpu_gb": 16}, "the actor needs", "set --offload"),
        ("8", {"length": 32_768, "attn_implementation": "eager"}, "the actor needs", "set --attn_implementation sinks"),
        ("8", {"length": 32_768, "gradient_checkpointing": None}, "the actor needs", "set --gradient_checkpointing"),
        ("8", {"actor_shard": "none", "length": 65_536}, "the actor needs", "set --actor_shard zero3"),
        ("2", {"micro_train_batch_size": 8}, "the actor needs", "set --micro_train_batch_size 1"),
        ("2", {"length": 34_000}, "the actor needs", "--actor_num_gpus_per_node with --actor_shard zero3"),
        ("2", {"length": 140_000}, "the model's context is 131,072", "lower their sum to 131,072"),
        ("2", {"length": 65_536}, "the actor needs", "lower --prompt_max_len + --generate_max_len to 32,"),
        (
            "2",
            {"gpu_gb": 48},
            "an engine may use 46.4 GB",
            "raise --vllm_tensor_parallel_size, or use GPUs with more memory",
        ),
        ("2", {"length": 131_072, "gpu_gb": 76}, "an engine may use 73.4 GB", "set --vllm_gpu_memory_utilization 0.95"),
        (
            "2",
            {"length": 131_072, "gpu_gb": 72},
            "an engine may use",
            "raise --vllm_tensor_parallel_size, or lower --prompt_max_len",
        ),
    ],
)
def test_what_cannot_fit_is_refused_with_a_remedy_that_helps(configure_box, gpus, changes, what, remedy):
    problems = [str(each) for each in problems_anywhere(gpu_memory.choose(configure_box(gpus, **changes)))]
    assert any(what in problem and remedy in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("model", "gpu_gb", "length"), [(SMALL, 24, 4096), (SMALL, 80, 131_072), (LARGE, 80, 4096), (LARGE, 80, 16_384)]
)
def test_one_gpu_holds_engine_and_actor(configure_box, model, gpu_gb, length):
    config = gpu_memory.choose(configure_box("1", length, model=model, gpu_gb=gpu_gb))
    assert list(check_gpu_memory(config)) == []


@pytest.fixture
def put_gpu(monkeypatch):
    """A function that gives this machine a GPU."""
    monkeypatch.delenv("DS_ACCELERATOR")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def put(capability: str, gpu_gb: int) -> None:
        monkeypatch.setattr(machine, "all_gpus", lambda: [Gpu("Test", gpu_gb * 2**30, 0, capability)])

    return put


@pytest.mark.parametrize(("model", "gpu_gb"), [(SMALL, 24), (SMALL, 40), (LARGE, 80), (LARGE, 180)])
@pytest.mark.parametrize("capability", ["8.0", "8.9", "9.0", "10.0", "12.0"])
def test_one_copy_of_the_model_is_refused_where_vllm_rearranges_the_experts(
    configure_box, put_gpu, capability, model, gpu_gb
):
    """The remedy is what then fits: two copies, or one of them on the host, or nothing."""

    def refuse(**changes) -> list[str]:
        return list_refusals(configure_box("1", model=model, gpu_gb=None, **changes))

    put_gpu(capability, gpu_gb)
    if capability == "9.0":
        assert refuse() == []
        return
    [problem] = refuse()
    assert f"--actor_shard engine needs GPUs of compute capability 9.0 (H100, H200); Test has {capability}" in problem
    two, on_host = (refuse(**changes) for changes in ({"actor_shard": "none"}, SETTINGS["--offload"] | ZERO3))
    assert ("set --actor_shard none" in problem) == (two == []) == (gpu_gb in (40, 180))
    assert ("set --actor_shard zero3 --offload" in problem) == (two != [] and on_host == [])
    assert not any("set --actor_shard engine" in refusal for refusal in two)


@pytest.mark.parametrize(("capability", "grows"), [("8.0", True), ("9.0", False), ("10.0", False), ("12.0", True)])
def test_marlin_pads_the_experts_of_an_engine_by_9_percent(configure_box, put_gpu, capability, grows):
    """vLLM 0.15 for 8.9: (32, 5888, 96, 16) in place of (32, 5760, 90, 16). Half of 2880 goes up to 1536."""
    put_gpu(capability, 80)
    for model, tensor_parallel, growth in ((SMALL, 1, 2944 * 3072 / 2880**2), (LARGE, 2, 1536 * 3072 / 1440 / 2880)):
        need = gpu_memory.needs(configure_box("8", model=model), vllm_tensor_parallel_size=tensor_parallel)
        experts = {SMALL: 10.15e9, LARGE: 60.9e9}[model] / tensor_parallel
        padding = need.engine.get("padding of the experts, by Marlin", 0)
        assert padding == pytest.approx(experts * (growth - 1) if grows else 0, rel=0.01)


ZERO3 = {"actor_shard": "zero3"}
SETTINGS = {
    "--offload": {"offload": True}, "--actor_shard zero3": ZERO3,
    "--micro_train_batch_size 1": {"micro_train_batch_size": 1}, "--experts packed": {"experts": "packed"},
    "--vllm_enable_sleep": {"vllm_enable_sleep": True}, "--actor_shard engine": {"actor_shard": "engine"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "remedies"),
    [
        ({"model": LARGE, "actor_shard": "none"}, ["--actor_shard engine"]),
        ({"model": SMALL, "gpu_gb": 24, "actor_shard": "none"}, ["--actor_shard engine"]),
        ({"model": SMALL, "gpu_gb": 24, "micro_train_batch_size": 8}, ["--micro_train_batch_size 1"]),
        ({"model": SMALL, "gpu_gb": 48, "experts": "bf16", "actor_shard": "none"}, ["--experts packed"]),
        ({"model": LARGE, "length": 20_000}, ["--vllm_enable_sleep"]),
    ],
)
def test_what_one_gpu_cannot_hold_is_refused_and_the_remedy_makes_it_fit(configure_box, changes, remedies):
    [problem] = list_refusals(configure_box("1", **changes))
    assert "engine and actor together need" in problem and all(remedy in problem for remedy in remedies)
    better = {name: value for remedy in remedies for name, value in SETTINGS[remedy].items()}
    assert list_refusals(configure_box("1", **changes | better)) == []


@pytest.mark.parametrize(
    ("model", "gpu_gb", "more"),
    [(SMALL, 24, {}), (SMALL, 32, {}), (SMALL, 24, {"vllm_enable_sleep": True}), (LARGE, 80, {})],
)
def test_the_longest_sequence_of_one_gpu_is_accepted_and_a_longer_one_is_not(configure_box, model, gpu_gb, more):
    limit = gpu_memory.find_longest(configure_box("1", model=model, gpu_gb=gpu_gb, **more))
    assert list_refusals(configure_box("1", limit, model=model, gpu_gb=gpu_gb, **more)) == []
    [problem] = list_refusals(configure_box("1", limit + 64, model=model, gpu_gb=gpu_gb, **more))
    assert f"to {limit:,}" in problem or "--vllm_enable_sleep" in problem
