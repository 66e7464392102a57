from argparse import Namespace

import pytest

from grpo import zero


def config(stage: int = 3, device: str = "none") -> dict:
    return {"zero_optimization": {"stage": stage, "offload_param": {"device": device}}}


@pytest.mark.timeout(500)
def test_many_gathers_are_exact(run_ranks):
    # Without stage3_allgather_sequential some of these gathers are wrong on gloo: they return too early.
    run_ranks(2, "gathers", "60")


def test_threshold_is_passed_on():
    args = Namespace(stage3_param_persistence_threshold=0)
    assert zero.tune(config(), args)["zero_optimization"]["stage3_param_persistence_threshold"] == 0


def test_other_stages_stay_as_they_are():
    assert zero.tune(config(stage=2), None) == config(stage=2)
