"""A rollout of one optimizer step through OpenRLHF's own classes or ours. The benchmark `step` runs this."""

import time
from argparse import Namespace
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from benchmarks.parts import memory, stock
from benchmarks.parts.ranks import read_job, report
from grpo.model import attention, cpu_matmul
from grpo.update import passes
from grpo.update.loss import PolicyLoss

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]
MODULES = ("models.actor", "trainer.ray.ppo_actor")


def build_actor(job: dict[str, Any], actor_class: Callable[..., Any], args: Namespace) -> Any:
    """Return OpenRLHF's Actor with an adapter of known values in bf16, the dtype that DeepSpeed casts it to."""
    extra = {} if job["package"] else {"router_logits": passes.has_balancing_loss(args), "experts": job["experts"]}
    actor = actor_class(
        job["model"],
        attn_implementation="eager" if job["package"] else attention.NAME,
        lora_rank=job["lora_rank"],
        lora_alpha=32,
        target_modules=TARGETS,
        **extra,
    )
    generator = torch.Generator().manual_seed(0)
    for parameter in find_adapter(actor).values():
        parameter.data = (torch.randn(parameter.shape, generator=generator) * 0.02).to(torch.bfloat16)
    actor.gradient_checkpointing_enable()
    return actor


def find_adapter(actor: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: parameter for name, parameter in actor.named_parameters() if parameter.requires_grad}


def rollout(job: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return one sequence: a quarter prompt, the rest response."""
    generator = torch.Generator().manual_seed(1)
    tokens, response = job["tokens"], job["tokens"] * 3 // 4
    return {
        "sequences": torch.randint(2, job["vocabulary"], (1, tokens), generator=generator),
        "attention_mask": torch.ones(1, tokens, dtype=torch.long),
        "action_mask": torch.ones(1, response, dtype=torch.bool),
        "advantages": torch.randn(1, response, generator=generator),
    }


Step = Callable[[SimpleNamespace], dict[str, float]]


def stock_step(actor: torch.nn.Module, args: Namespace, trainer_module: ModuleType) -> Step:
    """Return stock's training step of one micro-batch, with the pass for the old log-probs that it always makes."""

    def ignore(*_: object, **__: object) -> None:
        """The optimizer is the same in both and not part of the measurement."""

    trainer = SimpleNamespace(
        actor=actor,
        args=args,
        aux_loss=False,
        ema_model=None,
        actor_optim=None,
        actor_loss_fn=trainer_module.PolicyLoss(),
        actor_scheduler=SimpleNamespace(get_last_lr=lambda: [0.0]),
        strategy=SimpleNamespace(
            ring_attn_group=None,
            optimizer_step=ignore,
            backward=lambda loss, *_: loss.backward(),
            get_grad_norm=lambda _: 0.0,  # read from OpenRLHF 0.9.4 on
        ),
    )

    def step(batch: SimpleNamespace) -> dict[str, float]:
        actor.eval()
        with torch.no_grad():
            batch.action_log_probs = actor(batch.sequences, batch.action_mask, batch.attention_mask)
        status: dict[str, float] = trainer_module.ActorPPOTrainer.training_step(trainer, batch, 0.0, 0)
        return status

    return step


def our_step(actor: torch.nn.Module, args: Namespace, batch: SimpleNamespace) -> Step:
    """Return a rank's training of one micro-batch, which is the whole batch of the loss: it then equals stock's."""
    from grpo.training.update import Rank

    rank: Any = object.__new__(Rank)
    rank.actor, rank.args, rank.loss = actor, args, PolicyLoss(args)
    rank.metrics = SimpleNamespace(note=lambda *_: None, note_update=lambda: None)
    rank.loss.rollouts = torch.zeros(1, dtype=torch.long)
    rank.loss.scale = 1 / rank.loss.normalizer([batch.action_mask], [rank.loss.rollouts], lambda counts: counts)
    model: Any = actor.model
    model.backward, model.step = (lambda loss: loss.backward()), (lambda: None)  # no optimizer, as in stock's
    step: Step = rank._train
    return step


def arguments(job: dict[str, Any]) -> Namespace:
    """Return the flags of a run whose rollout is one sample and one optimizer step."""
    return Namespace(
        entropy_loss_coef=0.0,
        aux_loss_coef=0.0, use_kl_loss=False, use_dynamic_batch=False, init_kl_coef=0,
        rollout_batch_size=1, n_samples_per_prompt=1, max_epochs=1, train_batch_size=1, old_log_probs="trainer",
        loss_aggregation="token_mean", generate_max_len=job["tokens"], policy_loss_type="ppo", dual_clip=None,
        eps_clip_low_high=(0.2, 0.2), enable_vllm_is_correction=False, advantage_clip=None,
    )  # fmt: skip


def main() -> None:
    job = read_job()
    cpu_matmul.install()  # for both: it is not under comparison
    args = arguments(job)
    actor_module, trainer_module = (stock.load(job["package"], name) for name in MODULES)
    actor = build_actor(job, actor_module.Actor, args)

    batch = SimpleNamespace(**rollout(job), base_action_log_probs=None, rollout_log_probs=None, replay=None)
    batch.action_log_probs, batch.info = None, {} if job["package"] else {"sample": torch.zeros(1)}
    train = stock_step(actor, args, trainer_module) if job["package"] else our_step(actor, args, batch)

    def step() -> dict[str, float]:
        actor.zero_grad()
        return train(batch)

    seconds, processor, status = [], [], {}
    for _ in range(job["repeat"] + 1):  # the first pass is not counted: it reads the weights
        begin, processor_begin = time.perf_counter(), time.process_time()
        status = step()
        seconds.append(time.perf_counter() - begin)
        processor.append(time.process_time() - processor_begin)
    peak = memory.measure_peak(step, torch.device("cpu"))
    torch.save({name: parameter.grad for name, parameter in find_adapter(actor).items()}, job["gradients"])
    report(
        seconds=min(seconds[1:]), processor_seconds=min(processor[1:]), peak_bytes=peak,
        loss=status["policy_loss"], entropy=status.get("entropy_loss"),
    )  # fmt: skip


if __name__ == "__main__":
    main()
