"""The actor on one device, through PEFT and DeepSpeed's ZeRO-3: the numbers of bf16 experts on a CPU, and a step."""

import pytest
import torch

LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
ROWS = 90


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


def peft(model):
    from peft import LoraConfig, get_peft_model

    model.enable_input_require_grads()
    model = get_peft_model(model, LoraConfig(**LORA), autocast_adapter_dtype=False)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            shape = getattr(parameter, "ds_shape", parameter.shape)
            parameter.data = (torch.randn(shape, generator=generator) * 0.1).to(parameter.device, torch.bfloat16)
    model.gradient_checkpointing_enable({"use_reentrant": True})
    return model.train()


def scored(model, ids, tokens):
    """Return the log-probs of all tokens but the first, through the model that the actor wraps."""
    from grpo.update import log_probs

    positions = (tokens.long().cumsum(-1) - 1).clamp(min=0)
    with log_probs.scoring(model, ids.roll(-1, 1), ROWS, 1.0, False):
        output = model(ids, attention_mask=tokens.long(), position_ids=positions)
    return log_probs.scores(output["logits"], ids).log_probs[:, :-1] * tokens[:, 1:]


def test_log_probs_and_gradients_match_the_cpu(device, checkpoint):
    import deepspeed

    from grpo.model import loading, zero

    ids = torch.randint(2, ROWS, (2, 40), generator=torch.Generator().manual_seed(1))
    tokens = torch.ones_like(ids, dtype=torch.bool)
    tokens[0, :7] = False
    cpu = peft(loading.load_gpt_oss(checkpoint, "eager", packed=False))
    expected = scored(cpu, ids, tokens)
    expected.sum().backward()
    wanted = {name: p.grad.float() for name, p in cpu.named_parameters() if p.requires_grad}

    config = {
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_param": {"device": "none"}, "stage3_param_persistence_threshold": 0},
    }
    model = peft(loading.load_gpt_oss(checkpoint, ds_config=zero.tune(config, None)))
    trained = [p for p in model.parameters() if p.requires_grad]
    assert len(trained) == len(wanted)
    assert all(p.ds_tensor.device.type == device.type for p in model.parameters() if hasattr(p, "ds_tensor"))
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(trained, lr=1e-2, weight_decay=0), config=config
    )
    loading.restore_rope(engine)
    before = scored(engine, ids.to(device), tokens.to(device))
    assert (before.detach().cpu() - expected.detach()).abs().mean() < 0.02
    engine.backward(before.sum())
    for name, parameter in engine.module.named_parameters():
        if parameter.requires_grad:
            gradient = deepspeed.utils.safe_get_full_grad(parameter).cpu().float()
            assert (gradient - wanted[name]).norm() < 0.05 * wanted[name].norm() + 1e-3, name
    engine.step()
    with torch.no_grad():
        after = scored(engine, ids.to(device), tokens.to(device))
    assert after.isfinite().all()
    assert (after - before).abs().max() > 1e-3
