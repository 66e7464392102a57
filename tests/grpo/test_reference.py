"""The reference is the actor with its adapter off: the base model, to the bit."""

from types import SimpleNamespace

import pytest
import torch

from grpo import loading, reference


@pytest.fixture
def trained(peft_model):
    for name, parameter in peft_model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return peft_model


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(2, 12).view(1, 10)).logits


def test_the_adapter_is_off_inside_alone(trained, checkpoint):
    before, base = logits(trained), logits(loading.load_gpt_oss(checkpoint))
    states = [(name, parameter.requires_grad) for name, parameter in trained.named_parameters()]
    with reference.adapter_off(trained):
        inside = logits(trained)
        assert [(name, parameter.requires_grad) for name, parameter in trained.named_parameters()] == states
    assert torch.equal(inside, base) and not torch.equal(before, base)
    assert torch.equal(logits(trained), before)
    with pytest.raises(ZeroDivisionError), reference.adapter_off(trained):
        1 / 0  # noqa: B018
    assert torch.equal(logits(trained), before)


def test_every_module_is_run_that_a_training_pass_runs(trained):
    """ZeRO-3 fetches the parameters of the next modules in the order of the last pass."""
    run: list[str] = []
    for name, module in trained.named_modules():
        if not list(module.children()):
            module.register_forward_hook(lambda *_, name=name: run.append(name))
    logits(trained)
    training, run[:] = list(run), []
    with reference.adapter_off(trained):
        logits(trained)
    assert run == training and any("lora_A" in name for name in run)


def test_the_actors_are_asked(peft_model):
    from openrlhf.trainer.ray.ppo_actor import PolicyModelActor

    class Group:
        def async_run_method_batch(self, method_name, **batches):
            return method_name, batches

        def async_run_method(self, method_name):
            return method_name

    stand_in = reference.ActorAsReference(Group())
    name, batches = stand_in.async_run_method_batch(method_name="forward", sequences=[1])
    assert callable(getattr(PolicyModelActor.__ray_metadata__.modified_class, name)) and batches == {"sequences": [1]}
    assert stand_in.async_run_method(method_name="empty_cache") == "empty_cache"
    assert stand_in.async_init_model_from_pretrained(None, "model") == []


def test_the_actors_pass_is_that_of_the_base_model(trained, checkpoint):
    from openrlhf.models import Actor
    from openrlhf.trainer.ray.ppo_actor import PolicyModelActor

    actor_class = PolicyModelActor.__ray_metadata__.modified_class
    this = object.__new__(actor_class)
    this.strategy = SimpleNamespace(ring_attn_group=None)
    ids, mask = torch.arange(2, 12).view(1, 10), torch.ones(1, 10, dtype=torch.long)
    found = []
    for model in (trained, loading.load_gpt_oss(checkpoint)):
        this.actor = Actor(model)
        this.actor.packing_samples = False  # OpenRLHF sets it only for models that it loads
        found += [this.forward(ids, mask[:, 1:], mask), this.reference_forward(ids, mask[:, 1:], mask)]
    assert torch.equal(found[1], found[2]) and torch.equal(found[2], found[3])
    assert not torch.equal(found[0], found[1])


@pytest.mark.parametrize(("coefficient", "lora_rank", "expected"), [(0, 8, False), (0.001, 8, True), (0.001, 0, False)])
def test_the_actor_is_asked_where_a_kl_is_wanted(coefficient, lora_rank, expected):
    assert reference.is_actor(SimpleNamespace(init_kl_coef=coefficient, lora_rank=lora_rank)) is expected
