"""A rollout of one optimizer step through OpenRLHF's own classes, stock or patched. The benchmark `step` runs this."""

import pickle
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from grpo.model import attention, cpu_matmul
from grpo.update import old_policy, passes
from grpo.update.loss import PolicyLoss
from scripts.bench.parts import memory, stock
from scripts.bench.parts.ranks import job_of_this_rank, report

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]
MODULES = ("models.actor", "trainer.ray.ppo_actor")


def openrlhf_modules(package: str | None) -> list[ModuleType]:
    """Return the modules of a training step: from the folder `package`, or the installed, patched ones."""
    modules = []
    for name in MODULES:
        module = stock.module_from(Path(package) if package else stock.installed(), name)
        sys.modules[module.__name__] = module
        modules.append(stock.execute(module))
    return modules


def build_actor(job: dict[str, Any], actor_class: Callable[..., Any], args: Namespace) -> Any:
    """Return OpenRLHF's Actor with an adapter of known values in bf16, the dtype that DeepSpeed casts it to."""
    extra = {} if job["package"] else {"router_logits": passes.router_logits(args), "experts": job["experts"]}
    actor = actor_class(
        job["model"],
        attn_implementation="eager" if job["package"] else attention.NAME,
        lora_rank=job["lora_rank"],
        lora_alpha=32,
        target_modules=TARGETS,
        **extra,
    )
    generator = torch.Generator().manual_seed(0)
    for parameter in adapter_of(actor).values():
        parameter.data = (torch.randn(parameter.shape, generator=generator) * 0.02).to(torch.bfloat16)
    actor.gradient_checkpointing_enable()
    return actor


def adapter_of(actor: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
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


def loss_of(
    job: dict[str, Any], trainer_module: ModuleType, args: Namespace, batch: dict[str, torch.Tensor]
) -> torch.nn.Module:
    """Return stock's loss, or ours with the one sequence as the whole batch: the two are equal."""
    if job["package"]:
        return trainer_module.PolicyLoss()
    loss = PolicyLoss(args)
    loss.rollouts = torch.zeros(1, dtype=torch.long)
    loss.scale = 1 / loss.normaliser([batch["action_mask"]], [loss.rollouts], lambda counts: counts)
    return loss


def update(
    job: dict[str, Any],
    trainer: SimpleNamespace,
    training_step: Callable[..., dict[str, float]],
    batch: dict[str, torch.Tensor],
) -> dict[str, float]:
    """Compute the old log-probs if asked for, and one training step; the gradients stay on the adapter."""
    actor, old = trainer.actor, torch.zeros(batch["action_mask"].shape)
    actor.zero_grad()
    if job["package"] or not old_policy.is_on_policy(trainer.args):
        actor.eval()
        with torch.no_grad():
            old = actor(batch["sequences"], batch["action_mask"], batch["attention_mask"])
    empty: dict[str, Any] = {"base_action_log_probs": None, "rollout_log_probs": None}
    empty["info"] = {} if job["package"] else {"sample": torch.zeros(1)}
    return training_step(trainer, SimpleNamespace(**batch, **empty, action_log_probs=old, replay=None), 0.0, 0)


class TimedMetrics:
    """Times the actor's metrics of one rank, with an unpartitioned model in the engine's place.

    Attributes:
        seconds: so far.
        notes: of the last step, pickled.
    """

    def __init__(self, actor: torch.nn.Module, args: Namespace) -> None:
        from grpo.metrics.token_recorder import ActorMetrics

        optimizer = SimpleNamespace(param_groups=[{"lr": 0.0}])
        engine = SimpleNamespace(global_steps=0, module=actor.model, optimizer=optimizer)
        trainer = SimpleNamespace(args=args, actor=SimpleNamespace(model=engine))
        self._metrics, self.seconds, self.notes = ActorMetrics(trainer), 0.0, b""

    def note(self, *arguments: Any) -> None:
        """Record a micro-batch."""
        begin = time.perf_counter()
        self._metrics.note(*arguments)
        self.seconds += time.perf_counter() - begin

    def after_backward_and_step(self) -> None:
        """Look for an optimizer step (there is none) and pass the notes on."""
        begin = time.perf_counter()
        self._metrics.after_backward_and_step()
        self.notes = pickle.dumps(self._metrics.pop())  # as Ray does
        self.seconds += time.perf_counter() - begin


def arguments(job: dict[str, Any]) -> Namespace:
    """Return the flags of a run whose rollout is one sample and one optimizer step."""
    return Namespace(
        entropy_loss_coef=None if job.get("notes") else 0.0,
        aux_loss_coef=0.0, use_kl_loss=False, use_dynamic_batch=False, init_kl_coef=0,
        rollout_batch_size=1, n_samples_per_prompt=1, max_epochs=1, train_batch_size=1, old_log_probs="trainer",
        loss_aggregation="token_mean", generate_max_len=job["tokens"], policy_loss_type="ppo", dual_clip=None,
        eps_clip_low_high=(0.2, 0.2), enable_vllm_is_correction=False, advantage_clip=None,
    )  # fmt: skip


def main() -> None:
    job = job_of_this_rank()
    cpu_matmul.install()  # for both: it is not under comparison
    args = arguments(job)
    actor_module, trainer_module = openrlhf_modules(job["package"])
    actor = build_actor(job, actor_module.Actor, args)

    batch = rollout(job)

    def ignore(*_: object, **__: object) -> None:
        """The optimizer is the same in all and not part of the measurement."""

    timed = TimedMetrics(actor, args) if job.get("notes") else None
    trainer = SimpleNamespace(
        actor=actor,
        args=args,
        aux_loss=False,
        ema_model=None,
        actor_optim=None,
        actor_loss_fn=loss_of(job, trainer_module, args, batch),
        actor_scheduler=SimpleNamespace(get_last_lr=lambda: [0.0]),
        metrics=timed or SimpleNamespace(note=ignore, after_backward_and_step=ignore),
        strategy=SimpleNamespace(
            ring_attn_group=None,
            optimizer_step=ignore,
            backward=lambda loss, *_: loss.backward(),
            get_grad_norm=lambda _: 0.0,  # read from OpenRLHF 0.9.4 on
        ),
    )
    seconds, processor, collecting, status = [], [], [], {}
    for _ in range(job["repeat"] + 1):  # the first pass is not counted: it reads the weights
        begin, processor_begin = time.perf_counter(), time.process_time()
        before = timed.seconds if timed else 0.0
        status = update(job, trainer, trainer_module.ActorPPOTrainer.training_step, batch)
        seconds.append(time.perf_counter() - begin)
        processor.append(time.process_time() - processor_begin)
        collecting.append(timed.seconds - before if timed else 0.0)
    step = trainer_module.ActorPPOTrainer.training_step
    peak = memory.peak_of(lambda: update(job, trainer, step, batch), torch.device("cpu"))
    if timed:
        Path(job["notes"]).write_bytes(timed.notes)
    torch.save({name: parameter.grad for name, parameter in adapter_of(actor).items()}, job["gradients"])
    report(
        seconds=min(seconds[1:]), processor_seconds=min(processor[1:]), peak_bytes=peak,
        collecting=min(collecting[1:]), loss=status["policy_loss"], entropy=status.get("entropy_loss"),
    )  # fmt: skip


if __name__ == "__main__":
    main()
