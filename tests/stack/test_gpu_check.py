"""The rung of gpu_check about engines, on a CPU: real Ray, a real engine with TP=2, a sync, and the actor's model."""

import pytest

from scripts.gpu_check import rung
from scripts.gpu_check.ladder import LADDER


@pytest.mark.timeout(900)
def test_an_engine_agrees_with_the_actor(tiny_model):
    engine = next(each for each in LADDER if each.name == "engine")
    assert engine.lacks(gpus=0) == "needs a GPU; PyTorch finds none", "the ladder skips it without a GPU"
    result = rung.run_apart(engine, 0)
    assert result.verdict == rung.PASSED, result
    assert result.numbers["workers"] == 2
    assert result.numbers["difference_nat"] < 0.05 < result.numbers["without_adapter_nat"]
