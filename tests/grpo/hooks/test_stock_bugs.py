"""Bugs of stock OpenRLHF that our patches fix: every check here fails on the pristine files and passes on ours."""

import argparse
import contextlib
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import ray
import torch
from torch import nn

from grpo.lora import adapter
from grpo.model import loading
from grpo.stack import seats
from grpo.stack.cluster import EPHEMERAL_PORTS
from scripts.dequantize_checkpoint import dequantize_checkpoint
from tests.grpo.conftest import fails_on_stock
from tests.grpo.routed_model import TOKENS, others, small_model


def test_flash_attn_is_not_needed(load):
    fails_on_stock(load, lambda: load("models.ring_attn_utils"), ImportError)


def test_the_ranks_meet_on_a_port_outside_the_ephemeral_range(load):
    port = load("trainer.ray.launcher").BaseDistributedActor._get_free_port()
    first, last = map(int, EPHEMERAL_PORTS.read_text().split())

    def check():
        assert not first <= port <= last

    fails_on_stock(load, check)


class Asked(Exception):
    """Ray was asked for a place."""


def test_a_rank_runs_on_the_node_that_the_launcher_has_chosen(load, monkeypatch):
    monkeypatch.setenv(seats.VARIABLE, seats.Seats("a", ("a",), ("b",)).dump())
    module, bundles = load("trainer.ray.launcher"), []

    def group(asked, **_):
        bundles.extend(asked)
        raise Asked

    def check():
        monkeypatch.setattr(module, "placement_group", group)
        with contextlib.suppress(Asked):
            module.RayActorGroup(1, 1, MagicMock())
        assert bundles == [{"GPU": 1, "CPU": 1, "node:b": 0.001}]

    fails_on_stock(load, check)


@pytest.mark.parametrize("offloads", [True, False])
def test_adam_is_not_compiled_and_has_no_empty_group(load, monkeypatch, offloads):
    module = load("utils.deepspeed.deepspeed")
    for compiled in ("DeepSpeedCPUAdam", "FusedAdam"):
        monkeypatch.setattr(module, compiled, torch.optim.Adam)
    args = argparse.Namespace(param_dtype="bf16", adam_offload=offloads)
    strategy = module.DeepspeedStrategy(zero_stage=3, args=args)
    adam = strategy.create_optimizer(nn.Linear(2, 2, bias=False), lr=0.1, betas=(0.9, 0.95), weight_decay=0.1)

    def check():
        assert type(adam) is torch.optim.AdamW
        assert [group["fused"] for group in adam.param_groups] == [True]

    fails_on_stock(load, check)


def test_parameter_offload_has_a_flag(load):
    args = argparse.Namespace(param_dtype="bf16", offload=True, adam_offload=True)
    strategy = load("utils.deepspeed.deepspeed").DeepspeedStrategy(zero_stage=3, args=args)

    def check():
        config = strategy.get_ds_train_config(is_actor=True)
        assert config["zero_optimization"]["offload_param"]["device"] == "cpu"

    fails_on_stock(load, check)


def test_gathers_wait_for_every_parameter_on_gloo(load):
    args = argparse.Namespace(param_dtype="bf16", adam_offload=True)
    strategy = load("utils.deepspeed.deepspeed").DeepspeedStrategy(zero_stage=3, args=args)

    def check():
        assert strategy.get_ds_train_config(is_actor=True)["zero_optimization"]["stage3_allgather_sequential"]

    fails_on_stock(load, check, KeyError)


def test_router_logits_are_off_without_a_balancing_loss(load, checkpoint, tmp_path):
    # not quantised: at an MXFP4 config, stock stops before, since it passes quantization_config=None
    dequantize_checkpoint(checkpoint, tmp_path / "bf16")

    def check():
        actor = load("models.actor").Actor(str(tmp_path / "bf16"), attn_implementation="eager")
        assert not actor.model.config.output_router_logits

    fails_on_stock(load, check)


def test_an_mxfp4_checkpoint_loads(load, checkpoint):
    fails_on_stock(
        load, lambda: load("models.actor").Actor(str(checkpoint), attn_implementation="eager"), AttributeError
    )


def test_a_pass_of_the_actor_replays_a_routing(load, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")

    class Actor(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = small_model()

        def forward(self, sequences, *_, **__):
            return self.model(sequences).logits

    actor_class = load("trainer.ray.ppo_actor").PolicyModelActor.__ray_metadata__.modified_class
    this = SimpleNamespace(actor=Actor(), strategy=SimpleNamespace(ring_attn_group=None))
    mask = torch.ones_like(TOKENS)

    def check():
        plain = actor_class.forward(this, TOKENS, mask, mask)
        replayed = actor_class.forward(this, TOKENS, mask, mask, routing=others())
        assert (plain - replayed).abs().max() > 1e-3
        assert torch.equal(actor_class.forward(this, TOKENS, mask, mask), plain)

    fails_on_stock(load, check, TypeError)


def test_rotary_frequencies_stay_fp32(load, checkpoint, monkeypatch):
    module = load("utils.deepspeed.deepspeed")
    # what DeepSpeed's engine does with a bf16 configuration
    monkeypatch.setattr(module.deepspeed, "initialize", lambda model, **_: (model.bfloat16(), None, None, None))
    args = argparse.Namespace(param_dtype="bf16", adam_offload=True)
    strategy = module.DeepspeedStrategy(zero_stage=3, args=args)
    model = loading.load_gpt_oss(checkpoint)

    def check():
        strategy._ds_init_train_model(model, None, None)
        assert model.model.rotary_emb.inv_freq.dtype == torch.float32

    fails_on_stock(load, check)


def test_engines_get_the_adapter_without_pefts_names(load, peft_model, single_rank, monkeypatch):
    module = load("trainer.ray.ppo_actor")
    named = []

    def load_adapter(buffer, specs):
        tensors = [adapter.TensorSpec(**spec) for spec in specs]
        expected = adapter.Receipt.of(torch.from_numpy(buffer).view(torch.bfloat16), tensors)
        return [{"rank": 0, "workers": 1, "checksum": expected.checksum(1), "tensors": len(specs), "memory": 9}]

    engine = SimpleNamespace(
        update_weight=SimpleNamespace(remote=lambda name, **_: named.append(name)),
        load_adapter=SimpleNamespace(remote=load_adapter),
    )
    monkeypatch.setattr(ray, "put", lambda value: value)
    monkeypatch.setattr(ray, "get", lambda refs, **_: refs)
    trainer = object.__new__(module.ActorPPOTrainer)
    trainer.args = argparse.Namespace(lora_rank=2, zero_stage=0, ds_tensor_parallel_size=1)
    trainer.strategy = SimpleNamespace(args=trainer.args)
    trainer.actor = SimpleNamespace(model=SimpleNamespace(module=peft_model))
    trainer.vllm_engines, trainer.use_cuda_ipc = [engine], False
    noted = []
    trainer.metrics = SimpleNamespace(note_engines=noted.append)
    trainer._model_update_group = SimpleNamespace(broadcast=lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)

    def check():
        trainer.broadcast_to_vllm()
        assert not [name for name in named if "base_layer" in name or "lora_" in name]
        assert noted == [9]

    fails_on_stock(load, check)


def test_saving_an_adapter_does_not_gather_the_model(load, peft_model, single_rank, tmp_path):
    def gather_everything():
        raise AssertionError("the whole model is gathered")

    args = argparse.Namespace(param_dtype="bf16", zero_stage=3, ds_tensor_parallel_size=1)
    strategy = load("utils.deepspeed.deepspeed").DeepspeedStrategy(zero_stage=3, args=args)
    engine = SimpleNamespace(module=peft_model, _consolidated_16bit_state_dict=gather_everything)

    def check():
        strategy.save_model(engine, tokenizer=None, output_dir=str(tmp_path / "adapter"))
        assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()

    fails_on_stock(load, check)


@pytest.mark.parametrize("shared, waiting", [(False, "fit"), (True, "load")])
def test_training_waits_for_the_engines(load, monkeypatch, shared, waiting):
    """If they share the GPUs, the actor waits with loading: a starting engine measures the memory of its GPU."""

    def no_model():
        raise RuntimeError("the engine has no model")

    def get(reference):
        return [get(one) for one in reference] if isinstance(reference, list) else reference()

    def remote(reference):
        return SimpleNamespace(remote=lambda *_, **__: reference)

    done = []
    off = ("colocate_actor_ref", "async_train", "critic_pretrain", "init_kl_coef", "max_len")
    numbers = ("prompt_max_len", "generate_max_len", "actor_num_nodes", "actor_num_gpus_per_node")
    numbers += ("vllm_num_engines", "vllm_tensor_parallel_size")
    args = MagicMock(
        colocate_all_models=shared, lora_rank=2, lora_alpha=4, **dict.fromkeys(off, 0), **dict.fromkeys(numbers, 1)
    )
    trainer = SimpleNamespace(get_max_steps=remote(lambda: 1), fit=remote(lambda: done.append("fit")))
    group = SimpleNamespace(
        async_init_model_from_pretrained=lambda *_: [done.append("load") or (lambda: None)],
        async_save_model=lambda: [],
    )
    module = load("cli.train_ppo_ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(module, "placement_group", lambda *_, **__: SimpleNamespace(ready=lambda: lambda: None))
    monkeypatch.setattr(module, "get_strategy", lambda args: SimpleNamespace(print=lambda *_: None))
    engine = SimpleNamespace(get_num_unfinished_requests=remote(no_model))
    monkeypatch.setattr(module, "create_vllm_engines", lambda *_, **__: [engine])
    monkeypatch.setattr(module, "RayActorGroup", lambda *_, **__: group)
    controller = remote(trainer)
    controller.options = lambda **_: controller
    monkeypatch.setattr("openrlhf.trainer.ppo_trainer.PPOTrainer", controller)

    def check():
        with contextlib.suppress(RuntimeError):
            module.train(args)
        assert waiting not in done

    fails_on_stock(load, check)


@pytest.mark.parametrize("epochs, train_batch_size, passes", [(1, 4, 0), (1, 2, 0), (2, 4, 1)])
def test_old_log_probs_cost_a_pass_only_where_all_are_used(load, epochs, train_batch_size, passes, monkeypatch):
    module = load("trainer.ppo_utils.experience_maker")
    maker = object.__new__(module.RemoteExperienceMaker)
    sizes = {"rollout_batch_size": 2, "n_samples_per_prompt": 2, "max_epochs": epochs}
    off = ("colocate_all_models", "colocate_actor_ref", "init_kl_coef", "use_kl_loss")
    one = dict.fromkeys(("ring_attn_size", "ds_tensor_parallel_size"), 1)
    sizes["train_batch_size"] = train_batch_size
    maker.args = argparse.Namespace(**sizes, **one, **dict.fromkeys(off, 0), old_log_probs="trainer")
    maker.strategy = SimpleNamespace(args=maker.args)
    made = []

    def forward(method_name, sequences, action_mask, attention_mask):
        made.append(method_name)
        return [[torch.full(mask.shape, -1.0) for mask in action_mask]]

    maker.actor_model_group = SimpleNamespace(async_run_method_batch=forward)
    maker.critic_model_group = maker.initial_model_group = maker.reward_model_group = None
    monkeypatch.setattr(ray, "put", lambda value: value)
    monkeypatch.setattr(ray, "get", lambda value: value)
    mask = torch.ones(1, 3)
    samples = [
        SimpleNamespace(sequences=mask, attention_mask=mask, action_mask=mask, rewards=mask, info={}) for _ in range(4)
    ]

    def check():
        assert len(maker.make_experience(samples)) == 4
        assert made == ["forward"] * passes

    if passes:
        check()  # stock does the same
    else:
        fails_on_stock(load, check)
