from types import SimpleNamespace

import pytest
import torch

from grpo.metrics.metric_schema import BY_NAME
from grpo.metrics.thinking_metrics import thinking_metrics


def experience(rewards, cut=None):
    info = {} if cut is None else {"thinking_truncated": torch.tensor(cut)}
    # With length penalties the advantages come from other rewards than the logged ones.
    return SimpleNamespace(rewards=torch.tensor(rewards) - 1, info={"reward": torch.tensor(rewards), **info})


def test_the_reward_of_cut_thoughts_and_of_the_others():
    computed = thinking_metrics([experience([1.0, 0.0, 0.5], [1.0, 0.0, 1.0]), experience([0.5], [0.0])])
    assert computed == pytest.approx({"reward_thinking_truncated": 0.75, "reward_thinking_whole": 0.25})
    assert computed.keys() <= BY_NAME.keys()


def test_metrics_without_any_sample_are_left_out():
    assert thinking_metrics([experience([1.0])]) == {}
    assert thinking_metrics([experience([1.0, 0.0], [0.0, 0.0])]) == {"reward_thinking_whole": 0.5}


def test_samples_without_a_reward_are_ignored():
    batch = experience([1.0, 0.25, 0.5], [1.0, 1.0, 0.0])
    batch.info["reward_missing"] = torch.tensor([0.0, 1.0, 1.0])
    assert thinking_metrics([batch]) == {"reward_thinking_truncated": 1.0}
