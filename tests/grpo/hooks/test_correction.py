"""The importance corrections that OpenRLHF's flag offers are the ones of our loss, whatever their names."""

from types import SimpleNamespace

import torch

from grpo.hooks import ppo_actor
from grpo.launch.config import trainer_parser
from grpo.update import importance


def test_each_correction_of_the_flag_is_known_to_the_loss():
    choices = next(one.choices for one in trainer_parser()._actions if one.dest == "vllm_is_correction_type")
    assert choices and len(choices) == 3
    log_ratio, mask = torch.tensor([[0.1, -2.0], [3.0, 0.2]]), torch.ones(2, 2, dtype=torch.bool)
    results = set()
    for kind in choices:
        args = SimpleNamespace(loss_aggregation="token_mean", generate_max_len=8, vllm_is_correction_type=kind)
        correction = ppo_actor.PolicyLoss(args).correction
        weights, _ = importance.weights(log_ratio, mask, torch.arange(2), correction, (0.5, 2.0))
        results.add(tuple(weights.flatten().tolist()))
    assert len(results) == 3, "two names are the same correction"
