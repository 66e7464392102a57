"""Commands that the tests run on several ranks: ranks.py COMMAND ARGUMENTS... in an environment with RANK."""

import os
import resource
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model

from benchmarks.measure import Peak
from grpo.checkpoint import saving
from grpo.lora import adapter
from grpo.model import loading, zero


def make_ds_config(offload: bool, threshold: int = 0) -> dict:
    """The part of OpenRLHF's training configuration that matters here."""
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "offload_param": {"device": "cpu" if offload else "none"},
            "stage3_param_persistence_threshold": threshold,
        },
    }
    return zero.tune(config, None)


def load(path: str, out: str, offload: str, experts: str) -> None:
    """Load under ZeRO-3, gather every parameter with DeepSpeed's own gather, and save what rank 0 sees."""
    model = loading.load_gpt_oss(path, "eager", make_ds_config(offload == "offload"), packed=experts == "packed")
    partitions = sum(p.ds_tensor.numel() for p in model.parameters())
    total = sum(p.ds_numel for p in model.parameters())
    assert sum(p.data.numel() for p in model.parameters()) == 0, "a whole parameter is in memory"
    assert partitions <= total / dist.get_world_size() + len(list(model.parameters()))
    named = dict(model.named_parameters())
    with deepspeed.zero.GatheredParameters(list(named.values())):
        if dist.get_rank() == 0:
            torch.save({name: p.detach().clone() for name, p in named.items()}, out)
    for dtype in dict.fromkeys(parameter.dtype for parameter in named.values()):
        same = {name: parameter for name, parameter in named.items() if parameter.dtype == dtype}
        specs = adapter.layout(same, map(zero.whole_shape, same.values()))
        flat = adapter.unflatten(zero.gather_flat(list(same.values())), specs)
        with deepspeed.zero.GatheredParameters(list(same.values())):
            for name, parameter in same.items():
                assert torch.equal(flat[name], parameter), "gather_flat differs from DeepSpeed's gather"


def gather_rounds(rounds: str) -> None:
    """Gather many parameters at once, again and again; every gather must be whole when it returns."""
    config = make_ds_config(offload=False)
    init = deepspeed.zero.Init(config_dict_or_path=config, dtype=torch.bfloat16)
    values = [torch.full((257, 129), float(i), dtype=torch.bfloat16) for i in range(40)]
    parameters = [torch.nn.Parameter(value.clone()) for value in values]
    init._convert_to_zero_parameters(parameters)
    wrong = 0
    for _ in range(int(rounds)):
        with deepspeed.zero.GatheredParameters(parameters):
            wrong += sum(not torch.equal(p, v) for p, v in zip(parameters, values, strict=True))
    assert wrong == 0, f"{wrong} gathered parameters were wrong"


def save(path: str, out: str) -> None:
    """Save a non-zero adapter from ZeRO-3 partitions, and a whole copy of it for comparison."""
    torch.manual_seed(1)
    model = loading.load_gpt_oss(path, "eager", make_ds_config(offload=False))
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    model = get_peft_model(model, lora, autocast_adapter_dtype=False)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    whole = {n: p.detach().clone() for n, p in model.named_parameters() if "lora_" in n}
    zero_parameters = [p for p in model.parameters() if hasattr(p, "ds_id")]
    zero_parameters[0].convert_to_zero_parameters(param_list=[p for n, p in model.named_parameters() if "lora_" in n])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for step in (1, 2, 3):
        saving.save_adapter(model, Path(out) / "checkpoints" / f"step_{step}" / "adapter")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB
    if dist.get_rank() == 0:
        torch.save(whole, Path(out) / "whole.pt")

    # One NaN on the last rank stops every rank, before anything is written.
    broken = adapter.adapter_parameters(model)[1][3]
    if dist.get_rank() == dist.get_world_size() - 1:
        broken.ds_tensor[0] = float("nan")
    try:
        saving.save_adapter(model, Path(out) / "checkpoints" / "step_4" / "adapter")
    except FloatingPointError as error:
        print(error)
    else:
        raise AssertionError("an adapter with NaN was saved")


def gather_memory() -> None:
    """Gather an adapter of 96 MiB in 3 parts: beside its partitions, a rank has a part twice, the first rank all."""
    linear = [torch.nn.Linear(1024, 2048, bias=False, dtype=torch.bfloat16) for _ in range(24)]
    model = torch.nn.ModuleList(
        torch.nn.ModuleDict({"lora_A": torch.nn.ModuleDict({"default": layer})}) for layer in linear
    )
    init = deepspeed.zero.Init(config_dict_or_path=make_ds_config(offload=False), dtype=torch.bfloat16)
    init._convert_to_zero_parameters(list(model.parameters()))
    adapter.GATHERED = 8 << 21
    adapter.gather(model[:1])  # the first collective call allocates permanent buffers
    peak = Peak()
    flat, specs = adapter.gather(model)
    growth, part = peak.growth(), 2 * adapter.GATHERED
    assert len(specs) == 24 and flat.nbytes == (3 * part if dist.get_rank() == 0 else 0)
    assert 0.9 * part < growth - flat.nbytes < 2.2 * part, (growth, flat.nbytes)


if __name__ == "__main__":
    zero.shorten_start()
    deepspeed.init_distributed("gloo")
    {"load": load, "gathers": gather_rounds, "save": save, "gather_memory": gather_memory}[sys.argv[1]](*sys.argv[2:])
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # a thread of the C++ libraries sometimes aborts the interpreter's own exit, after all is done
