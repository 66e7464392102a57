"""Bugs and unused results of stock OpenRLHF: every check here fails on the pristine files and passes on ours."""

import contextlib
from types import SimpleNamespace

import pytest
import ray
import torch
from torch import nn

from grpo.flags.upstream import trainer_parser
from grpo.hooks.flag_aliases import Arguments
from grpo.model import loading
from scripts.checkpoint_writer import dequantize_checkpoint
from tests.grpo.conftest import assert_fails_on_stock


def test_flash_attn_is_not_needed(load):
    assert_fails_on_stock(load, lambda: load("models.ring_attn_utils"), ImportError)


def test_router_logits_are_off_without_a_balancing_loss(load, checkpoint, tmp_path):
    # not quantized: at an MXFP4 config, stock stops before, since it passes quantization_config=None
    dequantize_checkpoint(checkpoint, tmp_path / "bf16")

    def check():
        actor = load("models.actor").Actor(str(tmp_path / "bf16"), attn_implementation="eager")
        assert not actor.model.config.output_router_logits

    assert_fails_on_stock(load, check)


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
    words = ["--pretrain", "model", "--vllm_num_engines", "1", "--remote_rm_url", "reward.py", "--init_kl_coef", "0"]
    words += ["--actor_num_gpus_per_node", "1", "--ref_num_gpus_per_node", "1", "--lora_rank", "2"]
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
    monkeypatch.setattr("grpo.train.trainer.Trainer", lambda *_, **__: ours)
    monkeypatch.setattr("grpo.hooks.train_ppo_ray.rank", lambda: None)
    monkeypatch.setattr("grpo.hooks.train_ppo_ray.settle_nodes", lambda: None)  # Ray is not connected

    def check():
        with contextlib.suppress(RuntimeError):
            module.train(args)
        assert waiting not in done

    assert_fails_on_stock(load, check)


class Watched(nn.Module):
    """A model that remembers how many positions had logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args, **kwargs):
        output = self.model(*args, **kwargs)
        self.positions = output.logits.shape[1]
        return output

    def get_output_embeddings(self):
        return self.model.get_output_embeddings()


def make_actor(load, model):
    actor = load("models.actor").Actor.__new__(load("models.actor").Actor)
    nn.Module.__init__(actor)
    actor.model, actor.packing_samples, actor.temperature, actor.allocated = model, False, 1.0, None
    return actor


def test_prompts_have_no_logits(load, checkpoint):
    model = loading.load_gpt_oss(checkpoint).float().eval()
    watched = Watched(model)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, 97, (2, 12), generator=generator)
    attention = torch.ones_like(ids)
    attention[0, :2], attention[1, -1] = 0, 0  # padded on both sides
    actions = torch.zeros(2, 11, dtype=torch.bool)
    actions[0, 7:], actions[1, 5:10] = True, True
    actions[1, 6] = False  # not sampled, between sampled ones

    log_probs, output = make_actor(load, watched).forward(
        ids, actions, attention, return_output=True, return_entropy=load.stock
    )

    positions = (attention.cumsum(-1) - 1).masked_fill(attention == 0, 1)
    with torch.no_grad():
        full = model(ids, attention_mask=attention, position_ids=positions).logits
    distribution = torch.distributions.Categorical(logits=full[:, :-1])
    entropy = output.entropy if load.stock else output.scores.entropy[:, :-1]
    assert log_probs.shape == entropy.shape == actions.shape
    torch.testing.assert_close(log_probs, distribution.log_prob(ids[:, 1:]) * actions)
    torch.testing.assert_close(entropy * actions, distribution.entropy() * actions)

    def check():
        assert watched.positions == 12 - 5  # the sixth token predicts the first sampled one

    assert_fails_on_stock(load, check)
