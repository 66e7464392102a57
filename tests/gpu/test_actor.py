"""The actor on one device, through PEFT and DeepSpeed's ZeRO-3: the numbers of bf16 experts on a CPU, and a step."""

import pytest
import torch

from benchmarks.parity import add_adapter, score_tokens
from grpo.model.vocabulary import Allocated

ROWS = 90
KEPT = Allocated(ROWS)


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    """The accelerator's device, in a process group of one rank."""
    deepspeed = pytest.importorskip("deepspeed")
    accelerator = deepspeed.accelerator.get_accelerator()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_RANK", "0")
        # As deepspeed_start.shorten() does in a rank: compiling this operator takes a minute.
        patch.setitem(deepspeed.ops.__compatible_ops__, "deepspeed_shm_comm", False)
        meeting = f"file://{tmp_path_factory.mktemp('group') / 'rendezvous'}"
        deepspeed.init_distributed(
            accelerator.communication_backend_name(),
            auto_mpi_discovery=False, init_method=meeting, rank=0, world_size=1,
        )  # fmt: skip
        yield torch.device(accelerator.current_device_name())
        torch.distributed.destroy_process_group()


def test_log_probs_and_gradients_match_the_cpu(device, checkpoint):
    import deepspeed

    from grpo.model import loading, zero

    ids = torch.randint(2, ROWS, (2, 40), generator=torch.Generator().manual_seed(1))
    tokens = torch.ones_like(ids, dtype=torch.bool)
    tokens[0, :7] = False
    cpu = add_adapter(loading.load_gpt_oss(checkpoint, "eager", packed=False), 4, 0.1)
    expected = score_tokens(cpu, ids, tokens, KEPT)
    expected.sum().backward()
    wanted = {name: p.grad.float() for name, p in cpu.named_parameters() if p.requires_grad}

    config = {
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_param": {"device": "none"}, "stage3_param_persistence_threshold": 0},
    }
    model = add_adapter(loading.load_gpt_oss(checkpoint, ds_config=zero.tune(config, None)), 4, 0.1)
    trained = [p for p in model.parameters() if p.requires_grad]
    assert len(trained) == len(wanted)
    assert all(p.ds_tensor.device.type == device.type for p in model.parameters() if hasattr(p, "ds_tensor"))
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(trained, lr=1e-2, weight_decay=0), config=config
    )
    loading.restore_rope(engine)
    before = score_tokens(engine, ids.to(device), tokens.to(device), KEPT)
    assert (before.detach().cpu() - expected.detach()).abs().mean() < 0.02
    engine.backward(before.sum())
    for name, parameter in engine.module.named_parameters():
        if parameter.requires_grad:
            gradient = deepspeed.utils.safe_get_full_grad(parameter).cpu().float()
            assert (gradient - wanted[name]).norm() < 0.05 * wanted[name].norm() + 1e-3, name
    engine.step()
    with torch.no_grad():
        after = score_tokens(engine, ids.to(device), tokens.to(device), KEPT)
    assert after.isfinite().all()
    assert (after - before).abs().max() > 1e-3
