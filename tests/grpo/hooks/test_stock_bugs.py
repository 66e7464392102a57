"""Bugs of stock OpenRLHF that our patches fix: every check here fails on the pristine files and passes on ours."""

import contextlib
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import ray
import torch

from grpo.flags.upstream import trainer_parser
from grpo.hooks.flag_aliases import Arguments
from grpo.model.loading import load_gpt_oss
from grpo.stack import cluster
from scripts.checkpoint_writer import dequantize_checkpoint
from tests.grpo.conftest import assert_fails_on_stock


def test_flash_attn_is_not_needed(load):
    assert_fails_on_stock(load, lambda: load("models.ring_attn_utils"), ImportError)


class Asked(Exception):
    """Ray was asked for a place."""


def test_a_rank_runs_on_the_launchers_node(load, monkeypatch):
    monkeypatch.setattr(cluster, "list_nodes", lambda: [cluster.Node("a", 1), cluster.Node("b", 1)])
    module, bundles = load("trainer.ray.launcher"), []

    def make_group(asked, **_):
        bundles.extend(asked)
        raise Asked

    def check():
        monkeypatch.setattr(module, "placement_group", make_group)
        with contextlib.suppress(Asked):
            module.RayActorGroup(1, 1, MagicMock())
        assert bundles == [{"GPU": 1, "CPU": 1, "node:a": 0.001}]

    assert_fails_on_stock(load, check)


def test_router_logits_are_off_without_a_balancing_loss(load, checkpoint, tmp_path):
    # not quantized: at an MXFP4 config, stock stops before, since it passes quantization_config=None
    dequantize_checkpoint(checkpoint, tmp_path / "bf16")

    def check():
        actor = load("models.actor").Actor(str(tmp_path / "bf16"), attn_implementation="eager")
        assert not actor.model.config.output_router_logits

    assert_fails_on_stock(load, check)


def test_an_mxfp4_checkpoint_loads(load, checkpoint):
    """With transformers 4, stock raises. With 5, its experts are random."""

    def check():
        model = load("models.actor").Actor(str(checkpoint), attn_implementation="eager").model
        ids = torch.arange(2, 12).view(1, 10)
        with torch.no_grad():
            assert torch.equal(model(ids).logits, load_gpt_oss(checkpoint, "eager")(ids).logits)

    assert_fails_on_stock(load, check, AttributeError, AssertionError)


def test_saving_an_adapter_does_not_gather_the_model(load, peft_model, single_rank, tmp_path):
    def gather_everything():
        raise AssertionError("the whole model is gathered")

    args = Arguments(param_dtype="bf16", zero_stage=3, ds_tensor_parallel_size=1, use_dynamic_batch=False)
    strategy = load("utils.deepspeed.deepspeed").DeepspeedStrategy(zero_stage=3, args=args)
    engine = SimpleNamespace(module=peft_model, _consolidated_16bit_state_dict=gather_everything)

    def check():
        strategy.save_model(engine, tokenizer=None, output_dir=str(tmp_path / "adapter"))
        assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()

    assert_fails_on_stock(load, check)


@pytest.mark.parametrize("shared, waiting", [(False, "fit"), (True, "load")])
def test_training_waits_for_the_engines(load, monkeypatch, shared, waiting):
    """If they share the GPUs, the actor waits with loading: a starting engine measures the memory of its GPU."""

    def raise_no_model():
        raise RuntimeError("the engine has no model")

    def get(reference):
        return [get(one) for one in reference] if isinstance(reference, list) else reference()

    def remote(reference):
        return SimpleNamespace(remote=lambda *_, **__: reference)

    done = []
    words = ["--pretrain", "model", "--vllm_num_engines", "1", "--remote_rm_url", "reward.py"]
    words += [
        "--actor_num_gpus_per_node",
        "1",
        "--ref_num_gpus_per_node",
        "1",
        "--init_kl_coef",
        "0",
        "--lora_rank",
        "2",
    ]
    args = Arguments(**vars(trainer_parser().parse_args(words + ["--colocate_all_models"] * shared)))
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
    engine = SimpleNamespace(get_num_unfinished_requests=remote(raise_no_model))
    monkeypatch.setattr(module, "create_vllm_engines", lambda *_, **__: [engine])
    monkeypatch.setattr(module, "RayActorGroup", lambda *_, **__: group)
    controller = remote(trainer)
    monkeypatch.setattr("openrlhf.trainer.ppo_trainer.PPOTrainer", controller)  # stock's
    ours = SimpleNamespace(get_max_steps=lambda: 1, fit=lambda: done.append("fit"))
    monkeypatch.setattr("grpo.hooks.train_ppo_ray.trainer", lambda *_, **__: ours)
    monkeypatch.setattr("grpo.hooks.train_ppo_ray.rank", lambda: None)
    monkeypatch.setattr("grpo.hooks.train_ppo_ray.settle_nodes", lambda: None)  # Ray is not connected

    def check():
        with contextlib.suppress(RuntimeError):
            module.train(args)
        assert waiting not in done

    assert_fails_on_stock(load, check)
