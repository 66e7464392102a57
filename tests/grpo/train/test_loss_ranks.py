"""DeepSpeed's ZeRO-3 on two ranks, two samples each, against one process with the whole batch.

Only real ranks divide a batch, reduce gradients, and gather parameters.
"""

import pytest
import torch

from grpo.lora import adapter
from grpo.model import cpu_matmul, loading

from . import loss_ranks


@pytest.mark.parametrize(("micro_batch", "shard"), [(1, "zero3"), (2, "none")])
def test_any_micro_batches_give_the_gradient_of_the_whole_batch(run_ranks, checkpoint, tmp_path, micro_batch, shard):
    run_ranks(2, checkpoint, tmp_path, "token_mean", micro_batch, shard, script="train/loss_ranks.py")
    saved = torch.load(tmp_path / "results.pt")

    cpu_matmul.install(torch.float32)
    model = loading.load_gpt_oss(checkpoint)
    samples = [loss_ranks.join_samples([sample]) for sample in loss_ranks.make_samples()]
    with torch.no_grad():
        base = loss_ranks.compute_log_probs(model, samples[0])
    model = loss_ranks.add_adapter(model)
    names, parameters = adapter.adapter_parameters(model)
    loss_ranks.fill(parameters)
    parts = [(one.advantages * one.action_mask * loss_ranks.compute_log_probs(model, one)).sum() for one in samples]
    (-sum(parts) / sum(loss_ranks.LENGTHS)).backward()
    for name, parameter in zip(names, parameters, strict=True):
        expected = parameter.grad.float()
        assert (saved["gradients"][name] - expected).norm() < 0.03 * expected.norm(), name  # bf16
        assert expected.norm() > 0

    # The reference is the base model, before, between and after the passes of training.
    assert all(torch.equal(one, saved["off"][0]) for one in saved["off"])
    off, on = ((one - base).abs().max() for one in (saved["off"][0], saved["on"]))
    assert on > 0.02 and off < on / 10  # bf16
