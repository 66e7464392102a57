"""The plan of one split of the GPUs says what the other one costs and holds, as the plan of the other one does."""

import re

import pytest

from grpo.launch import cost, fitting, gpu_memory
from grpo.launch.plan import make_plan, size

from .boxes import BOXES, LARGE, RECIPE
from .conftest import make_judge


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was measured on this machine, the figures are the stated ones."""
    monkeypatch.setattr(cost.Rates, "from_report", cost.Rates.from_docs)
    monkeypatch.delenv("OLD_LOG_PROBS", raising=False)


def config_of(setting, gpus: int, is_paired: bool, **changes):
    pair = BOXES["1"] | {"vllm_num_engines": gpus, "actor_num_gpus_per_node": gpus}
    sizes = {"pretrain": LARGE, "engine_model": LARGE, "generate_max_len": 3072}
    free = dict.fromkeys(fitting.MICRO_BATCHES)
    return fitting.choose(
        setting.make_config(**RECIPE | sizes | free | (pair if is_paired else BOXES[str(gpus)]) | changes)
    )


def text_of(config) -> str:
    return "\n".join(cost.describe(make_plan(config), config, make_judge()))


def seconds(pattern: str, text: str) -> int:
    return int(re.search(pattern, text)[1])


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_each_split_has_the_others_seconds_and_memory(setting, gpus: int) -> None:
    apart, paired = (config_of(setting, gpus, is_paired) for is_paired in (False, True))
    texts = {False: text_of(apart), True: text_of(paired)}
    step, other = r"of (\d+) s, if every", r"ACTOR_SHARD=.* would take (\d+) s per step"
    assert seconds(other, texts[False]) == seconds(step, texts[True])
    assert seconds(other, texts[True]) == seconds(step, texts[False])
    ahead = seconds(r"PIPELINE=1 would take (\d+) s", texts[False])
    assert seconds(r"with PIPELINE=1 also, (\d+) s", texts[True]) == ahead
    for text, config in ((texts[True], apart), (texts[False], paired)):
        need = gpu_memory.needs(config)
        assert f"actor {size(need.actor_bytes)}, engine {size(sum(need.engine.values()))} without cache" in text
        assert f"sequences of up to {gpu_memory.longest(config):,} tokens" in text
    assert f"ACTOR_SHARD=engine with {gpus} engines and ranks" in texts[False]


def test_a_split_that_cannot_be_is_refused_in_the_plan(setting) -> None:
    assert "ACTOR_SHARD=engine with 4 engines and ranks is not possible" in text_of(
        config_of(setting, 4, is_paired=False, train_batch_size=6)
    )
    long = config_of(setting, 2, is_paired=False, generate_max_len=20_480)
    assert re.search("ACTOR_SHARD=engine .*not possible: engine and actor together need", text_of(long))


def test_one_gpu_several_nodes_and_two_copies_on_each_gpu_have_no_other_split(setting) -> None:
    two = {"colocate_all_models": True, "actor_shard": "none", "gpu_gb": 180, "vllm_gpu_memory_utilization": None}
    for config in (config_of(setting, 1, is_paired=True), config_of(setting, 1, is_paired=True, **two)):
        assert "engines and ranks" not in text_of(config) and "ACTOR_SHARD" not in text_of(config)
