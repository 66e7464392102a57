"""What the plan says of nodes, against numbers worked out by hand."""

import re

import pytest

from grpo.launch import cost, scaling
from grpo.launch.judge import RunJudge
from grpo.launch.phases import NETWORK, Rates, phases
from grpo.launch.plan import describe as describe_plan
from grpo.launch.plan import make_plan
from tests.docs.pages import get_page

from .conftest import make_judge, write_aime

LARGE = "openai/gpt-oss-120b"
JUDGE = RunJudge(None, is_stand_in=False)
RECIPE = {
    "pretrain": LARGE, "engine_model": LARGE, "attn_implementation": "sinks", "lora_rank": 64, "offload": None,
    "prompt_max_len": 1024, "generate_max_len": 3072, "gpu_gb": 80, "vllm_gpu_memory_utilization": 0.9,
    "enforce_eager": True, "eval_steps": -1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was measured on this machine, the figures are the stated ones."""
    monkeypatch.setattr(cost.Rates, "from_report", cost.Rates.from_docs)


@pytest.fixture
def describe_nodes(setting):
    """A function from flags to the lines on nodes."""

    def describe_nodes(**changes) -> list[str]:
        config = setting.make_config(**RECIPE | changes)
        return scaling.describe(make_plan(config), config, JUDGE)

    return describe_nodes


def compute_seconds(config) -> float:
    return cost.seconds_of_step(make_plan(config), config, JUDGE, Rates.from_docs())


def compute_gathers(config):
    parts = phases(make_plan(config), config, JUDGE, Rates.from_docs())
    return next(phase for phase in parts if phase.name == "gathers")


def test_a_run_that_says_nothing_of_nodes_has_the_plan_of_before(describe_nodes) -> None:
    assert describe_nodes() == []


def test_nodes_say_who_runs_there_and_what_a_sync_brings(describe_nodes) -> None:
    assert describe_nodes(nodes=3, gpus_per_node=8, vllm_num_engines=7)[:5] == [
        "nodes       3 of 8 GPUs, 18 of 24 used; node 1 is the launcher's",
        "  node 1    actor ranks 0 to 3 on GPUs 0 to 3; a sync starts here",
        "  node 2    engines 0 to 3 on GPUs 0 to 7; a sync sends it 95.6 MB, once for all its engines",
        "  node 3    engines 4 to 6 on GPUs 0 to 5; a sync sends it 95.6 MB, once for all its engines",
        "  sync      191.1 MB over the network, 95.6 MB to each node that gets it; 668.9 MB if each engine got its own",
    ]
    beside = describe_nodes(nodes=2, gpus_per_node=8, vllm_num_engines=6)
    assert beside[1] == "  node 1    engines 4, 5 on GPUs 0 to 3, actor ranks 0 to 3 on GPUs 4 to 7; a sync starts here"


def test_the_page_shows_what_the_plan_prints(setting) -> None:
    (shown,) = [block for _, block in get_page("docs/cluster.md").blocks if block.startswith("nodes")]
    sizes = {"micro_train_batch_size": 2, "micro_rollout_batch_size": 2, "num_episodes": 50}
    shape = {"nodes": 2, "gpus_per_node": 8, "vllm_num_engines": 6, "eval_steps": 10, "eval_n_samples_per_prompt": 8}
    config = setting.make_config(**RECIPE | sizes | shape | write_aime(setting.folder))
    printed = scaling.describe(make_plan(config), config, make_judge())
    assert [line for line in shown.splitlines() if line not in printed] == []


def test_a_node_without_work_is_named(describe_nodes) -> None:
    text = describe_nodes(nodes=3, gpus_per_node=8)
    assert text[3] == "  node 3    unused: lower NODES, or raise NUM_ENGINES or ACTOR_GPUS"


def test_ranks_on_several_nodes_gather_over_the_network(describe_nodes, setting) -> None:
    shape = {"nodes": 3, "gpus_per_node": 8, "actor_num_gpus_per_node": 16, "train_batch_size": 16}
    text = "\n".join(describe_nodes(**shape))
    assert "up to 32.6 GB into a node in each pass over the model; ACTOR_SHARD=none needs none" in text
    config = setting.make_config(**RECIPE | shape)
    # 64 samples on 16 ranks in micro-batches of 1: 4 forward and backward passes, and 3 for old log-probs, since the
    # first of 4 updates has the sampling policy's. A node lacks half of the weights.
    assert compute_gathers(config).seconds == pytest.approx((4 * 2 + 3) * 65.2e9 / 2 / (NETWORK * 1e9), rel=0.01)
    assert "between nodes; assumes 50 GB/s" in compute_gathers(config).source
    one = setting.make_config(**RECIPE | {"actor_num_gpus_per_node": 8, "nodes": 2, "gpus_per_node": 8})
    assert "200 GB/s" in compute_gathers(one).source


def test_a_further_node_brings_what_the_cost_model_says(describe_nodes, setting) -> None:
    # TRAIN_BATCH_SIZE 4 leaves 4 ranks: the further node can only hold engines.
    shape = {"train_batch_size": 4, "gpus_per_node": 8}
    text = "\n".join(describe_nodes(**shape))
    now, then = (
        compute_seconds(setting.make_config(**RECIPE | shape | {"vllm_num_engines": count})) for count in (2, 6)
    )
    assert then < now
    assert f"  node 2    a step would take {then:.0f} s instead of {now:.0f}, with NUM_ENGINES=6" in text


def test_nodes_that_are_not_full_are_filled_before_a_further_one(describe_nodes) -> None:
    text = "\n".join(describe_nodes(train_batch_size=4, nodes=2, gpus_per_node=8))
    filled = re.search(r"  unused    with NUM_ENGINES=6, a step takes (\d+) s instead of \d+", text)
    assert filled and re.search(
        rf"  node 3    a step would take \d+ s instead of {filled[1]}, with NUM_ENGINES=10", text
    )


def test_a_further_node_for_ranks_keeps_the_batches_whole(setting) -> None:
    config = setting.make_config(**RECIPE | {"train_batch_size": 8, "gpus_per_node": 8})
    found = scaling.choices(config, 3, compute_seconds)
    assert [(choice.engines, choice.ranks) for choice in found] == [(10, 4), (8, 8)]


def test_engines_without_samples_bring_nothing(describe_nodes, setting) -> None:
    config = setting.make_config(**RECIPE | {"train_batch_size": 4, "gpus_per_node": 80})
    assert {choice.engines for choice in scaling.choices(config, 2, compute_seconds)} == {64}
    text = describe_nodes(
        train_batch_size=4, nodes=2, gpus_per_node=80, vllm_num_engines=64, pipeline=True, old_log_probs="engine"
    )
    assert "  node 3    would not help" in "\n".join(text)


def test_nodes_too_small_say_nothing_and_a_tiny_model_has_no_seconds(describe_nodes, setting) -> None:
    assert describe_nodes(nodes=2, gpus_per_node=8, vllm_num_engines=9) == []
    config = setting.make_config(nodes=2, gpus_per_node=4)
    text = scaling.describe(make_plan(config), config, JUDGE)
    assert text[1].startswith("  node 1    actor ranks 0 to 3") and "a step would" not in "\n".join(text)


def test_the_memory_of_several_hosts_is_not_that_of_one(setting) -> None:
    for count, hosts in ((1, "on the host:"), (2, "on all hosts together, and 798.0 MB in /dev/shm of each after")):
        config = setting.make_config(**RECIPE | {"nodes": count, "gpus_per_node": 8})
        assert hosts in "\n".join(describe_plan(make_plan(config), config))
