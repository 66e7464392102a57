import math

import numpy as np
import pytest
import torch

from reward.returned import ReturnError, read


@pytest.mark.parametrize(
    "value",
    [
        0.5, np.float32(0.5), torch.tensor(0.5), [0.5], (0.5,), torch.tensor([0.5]), np.array([0.5]),
        [torch.tensor(0.5)], {"rewards": 0.5}, {"rewards": [0.5], "scores": None, "extra_logs": None},
        {"rewards": torch.tensor([0.5]), "scores": torch.tensor([0.5]), "extra_logs": {}},
    ],
    ids=str,
)  # fmt: skip
def test_every_accepted_form_is_one_reward(value):
    returned = read(value, 1)
    assert (returned.rewards, returned.scores, returned.logs) == ([0.5], [0.5], [{}])


def test_openrlhfs_dictionary_keeps_scores_and_logs():
    value = {"rewards": torch.tensor([0.7, 0.2]), "scores": [1, 0], "extra_logs": {"length": torch.tensor([3, 4])}}
    returned = read(value, 2)
    assert returned.rewards == pytest.approx([0.7, 0.2]) and returned.scores == [1.0, 0.0]
    assert returned.logs == [{"length": 3.0}, {"length": 4.0}]


def test_none_in_a_list_is_a_missing_reward_and_a_switch_is_a_number():
    returned = read([None, True], 2)
    assert math.isnan(returned.rewards[0]) and returned.rewards[1] == 1.0


@pytest.mark.parametrize(
    ("value", "count", "message"),
    [
        (None, 1, "None"),
        ("1.0", 1, "'1.0', of type str"),
        ([0.1, 0.2], 1, "2 values for 1 rollout"),
        ([], 1, "0 values for 1 rollout"),
        (0.5, 2, "2 rollouts"),
        (["a"], 1, "'a', of type str"),
        ([[0.5]], 1, "\\[0.5\\], of type list"),
        ({"reward": 1.0}, 1, "'reward'"),
        ({"scores": 1.0}, 1, "'rewards'"),
        ({"rewards": 1.0, "extra_logs": [1]}, 1, "'extra_logs'"),
        ({"rewards": 1.0, "extra_logs": {"why": "short"}}, 1, "'why'"),
    ],
)
def test_anything_else_is_named(value, count, message):
    with pytest.raises(ReturnError, match=message):
        read(value, count)
