"""The reference is the actor with its adapter off: the base model, to the bit."""

from types import SimpleNamespace

import pytest
import ray
import torch
from openrlhf.trainer.ppo_utils.experience_maker import Experience, RemoteExperienceMaker

from grpo.model import loading
from grpo.update import reference


@pytest.fixture
def trained(peft_model):
    for name, parameter in peft_model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return peft_model


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(2, 12).view(1, 10)).logits


def test_adapter_is_disabled_only_inside_the_context(trained, checkpoint):
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


def test_reference_pass_runs_every_module_of_a_training_pass(trained):
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


def test_reference_log_probs_come_from_the_actors(peft_model):
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


def test_actors_reference_pass_equals_the_base_model(trained, checkpoint):
    from openrlhf.models import Actor
    from openrlhf.trainer.ray.ppo_actor import PolicyModelActor

    actor_class = PolicyModelActor.__ray_metadata__.modified_class
    this = object.__new__(actor_class)
    this.strategy = SimpleNamespace(ring_attn_group=None)
    ids, mask = torch.arange(2, 12).view(1, 10), torch.ones(1, 10, dtype=torch.long)
    passes = []
    for model in (trained, loading.load_gpt_oss(checkpoint)):
        this.actor = Actor(model)
        this.actor.packing_samples = False  # OpenRLHF sets it only for models that it loads
        passes += [this.forward(ids, mask[:, 1:], mask), this.reference_forward(ids, mask[:, 1:], mask)]
    assert torch.equal(passes[1], passes[2]) and torch.equal(passes[2], passes[3])
    assert not torch.equal(passes[0], passes[1])


@pytest.mark.parametrize(("coefficient", "lora_rank", "expected"), [(0, 8, False), (0.001, 8, True), (0.001, 0, False)])
def test_actor_computes_the_reference_if_a_kl_is_used(coefficient, lora_rank, expected):
    assert reference.is_actor(SimpleNamespace(init_kl_coef=coefficient, lora_rank=lora_rank)) is expected


class Passes:
    """A group of models that gives log-probs, and counts its passes."""

    def __init__(self, log_probs: torch.Tensor) -> None:
        self.log_probs, self.count = log_probs, 0

    def async_run_method_batch(self, method_name, sequences, **_):
        assert method_name == "forward"
        self.count += 1
        return ray.put([[self.log_probs] for _ in sequences])


CASES = [(4, "trainer", 0), (2, "engine", 0), (2, "trainer", 1)]


@pytest.mark.parametrize(("train_batch_size", "old", "made"), CASES)
@pytest.mark.parametrize(("in_loss", "is_known"), [(False, True), (True, True), (False, False)])
def test_kl_costs_one_extra_pass(monkeypatch, in_loss, is_known, train_batch_size, old, made):
    """The reference's pass, and the trainer's if the reward uses it or the engine's log-probs are missing."""
    made = int((made and not in_loss) or not is_known)
    monkeypatch.setattr(ray, "put", lambda value: value)
    monkeypatch.setattr(ray, "get", lambda value: value)
    engine, trainer, base = torch.randn(3, 2, 5)
    maker = object.__new__(RemoteExperienceMaker)
    maker.args = SimpleNamespace(
        init_kl_coef=0.1, use_kl_loss=in_loss, kl_estimator="k1", old_log_probs=old, train_batch_size=train_batch_size,
        rollout_batch_size=2, n_samples_per_prompt=2, max_epochs=1, ring_attn_size=1, ds_tensor_parallel_size=1,
        colocate_all_models=False, colocate_actor_ref=False,
    )  # fmt: skip
    maker.strategy = SimpleNamespace(args=maker.args)
    actors, references = Passes(trainer), Passes(base)
    maker.actor_model_group, maker.initial_model_group, maker.critic_model_group = actors, references, None
    samples = Experience(
        sequences=torch.ones(2, 6), attention_mask=torch.ones(2, 6), action_mask=torch.ones(2, 5),
        rollout_log_probs=engine if is_known else None, rewards=torch.ones(2), info={"reward": torch.ones(2)},
    )  # fmt: skip
    (experience,) = maker.make_experience([samples])
    assert (actors.count, references.count) == (made, 1)
    assert torch.equal(experience.kl, torch.zeros(2, 5) if in_loss else (trainer if made else engine) - base)
    assert experience.base_action_log_probs is (base if in_loss else None)
