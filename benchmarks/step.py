"""A training step: OpenRLHF's own classes without our patches, from bf16, and with them, from packed MXFP4.

A rollout is one sequence and one optimizer step. Both run in this process without DeepSpeed and without an optimizer.
Attention and experts have the sizes of gpt-oss-120b, but there are few layers and experts. Loss, entropy and gradients
must agree.
"""

import argparse
import importlib
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

import patches
from benchmarks.measure import compare, measure_peak, time_in_turn
from benchmarks.random_model import shrink, write_model
from grpo.hooks.flag_aliases import Arguments
from grpo.model import attention, cpu_matmul
from grpo.model.architecture import ATTENTION_PROJECTIONS
from grpo.train import passes
from grpo.train.loss import PolicyLoss
from patches.install import Installed
from scripts.checkpoint_writer import dequantize_checkpoint

_TOLERANCE = 0.02  # of two implementations of a sum in bf16
Step = Callable[[], dict[str, float]]  # returns loss and entropy


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Compare both on a sequence of `--tokens`."""
    from openrlhf.models.actor import Actor

    cpu_matmul.install(torch.float32)  # for both: it is not under comparison
    args, batch = _arguments(options.tokens), _draw_rollout(options.tokens, options.vocabulary)
    with tempfile.TemporaryDirectory() as scratch:
        packed, whole, package = (Path(scratch, name) for name in ("mxfp4", "bf16", "openrlhf"))
        sizes = {name: getattr(options, name) for name in ("vocabulary", "layers", "experts", "intermediate")}
        write_model(packed, shrink(**sizes))
        dequantize_checkpoint(packed, whole)
        copy_pristine(package)
        models, trainer = (load_stock(package, name) for name in ("models.actor", "trainer.ray.ppo_actor"))
        lora: dict[str, Any] = {"lora_rank": 64, "lora_alpha": 32, "target_modules": list(ATTENTION_PROJECTIONS)}
        own = {"router_logits": passes.has_balancing_loss(args), "experts": "packed"}
        actors = {
            "stock": models.Actor(str(whole), attn_implementation="eager", **lora),
            "ours": Actor(str(packed), attn_implementation=attention.NAME, **lora, **own),
        }
    trained = {name: _draw_adapter(actor) for name, actor in actors.items()}
    steps = {
        "stock": _stock_step(actors["stock"], trainer, args, batch),
        "ours": _our_step(actors["ours"], args, batch),
    }
    details = _compare({name: step() for name, step in steps.items()}, trained)
    details |= {f"{name}_peak_gb": measure_peak(step, torch.device("cpu")) / 1e9 for name, step in steps.items()}
    seconds = time_in_turn(steps, options.repeat)
    what = (
        f"a training step on {options.tokens} tokens, {options.layers} layers of {options.experts} experts, "
        f"{options.vocabulary} rows of vocabulary, gradient checkpointing"
    )
    return compare(what, "s", seconds["stock"], seconds["ours"], details)


def copy_pristine(target: Path) -> Path:
    """Copy OpenRLHF's own package to `target`; returns `target`."""
    original = Installed(patches.find_package(), patches.load(version("openrlhf"))).find_original()
    return Path(shutil.copytree(original, target, ignore=shutil.ignore_patterns("__pycache__")))


def load_module(package: str | Path | None, name: str) -> ModuleType:
    """Put `openrlhf.NAME` from the folder `package` into `sys.modules`; return it. None is the installed, patched one.

    Its imports come from the installed package.
    """
    importlib.import_module(f"openrlhf.{name}")  # its imports, in the order that resolves their cycle
    file = Path(package or patches.find_package(), *name.split(".")).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(f"openrlhf.{name}", file)
    assert spec and spec.loader
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_stock(package: Path, name: str) -> ModuleType:
    """Return a module of OpenRLHF without our patches; the installed one stays in its place."""
    module = load_module(package, name)
    sys.modules[module.__name__] = load_module(None, name)
    return module


def _arguments(tokens: int) -> Any:
    """Return the flags of a run whose rollout is one sample and one optimizer step."""
    return Arguments(
        entropy_loss_coef=0.0,
        aux_loss_coef=0.0, use_kl_loss=False, use_dynamic_batch=False, init_kl_coef=0,
        rollout_batch_size=1, n_samples_per_prompt=1, max_epochs=1, train_batch_size=1, old_log_probs="trainer",
        loss_aggregation="token_mean", generate_max_len=tokens, policy_loss_type="ppo", dual_clip=None,
        eps_clip_low_high=(0.2, 0.2), enable_vllm_is_correction=False, advantage_clip=None,
    )  # fmt: skip


def _draw_rollout(tokens: int, vocabulary: int) -> dict[str, Any]:
    """Return one sequence: a quarter prompt, the rest response."""
    generator, response = torch.Generator().manual_seed(1), tokens * 3 // 4
    return {
        "sequences": torch.randint(2, vocabulary, (1, tokens), generator=generator),
        "attention_mask": torch.ones(1, tokens, dtype=torch.long),
        "action_mask": torch.ones(1, response, dtype=torch.bool),
        "advantages": torch.randn(1, response, generator=generator),
        "base_action_log_probs": None,
        "rollout_log_probs": None,
    }


def _draw_adapter(actor: Any) -> dict[str, Any]:
    """Give an actor an adapter of known values in bf16, the dtype that DeepSpeed casts it to; return its parameters."""
    generator = torch.Generator().manual_seed(0)
    trained = {name: parameter for name, parameter in actor.named_parameters() if parameter.requires_grad}
    for parameter in trained.values():
        parameter.data = (torch.randn(parameter.shape, generator=generator) * 0.02).to(torch.bfloat16)
    actor.gradient_checkpointing_enable()
    return trained


def _stock_step(actor: Any, module: ModuleType, args: Any, batch: dict[str, Any]) -> Step:
    """Return stock's training of one micro-batch, with the pass for the old log-probs that it always makes."""
    strategy = SimpleNamespace(
        ring_attn_group=None, optimizer_step=lambda *_, **__: None, get_grad_norm=lambda _: 0.0,
        backward=lambda loss, *_: loss.backward(),
    )  # fmt: skip
    trainer = SimpleNamespace(
        actor=actor, args=args, strategy=strategy, replay_buffer=None, aux_loss=False, ema_model=None, actor_optim=None,
        actor_loss_fn=module.PolicyLoss(), actor_scheduler=SimpleNamespace(get_last_lr=lambda: [0.0]),
    )  # fmt: skip

    def step() -> dict[str, float]:
        actor.zero_grad()
        experience = module.Experience(**batch)
        experience.info = {}
        actor.eval()
        with torch.no_grad():
            experience.action_log_probs = actor(batch["sequences"], batch["action_mask"], batch["attention_mask"])
        status = module.ActorPPOTrainer.training_step(trainer, experience, 0.0, 0)
        return dict(status.get("metrics", status))  # OpenRLHF 0.11.2 has them with their weights

    return step


def _our_step(actor: Any, args: Any, batch: dict[str, Any]) -> Step:
    """Return a rank's training of one micro-batch, which is the whole batch of the loss: it then equals stock's."""
    from grpo.train.worker import PolicyWorker

    rank: Any = object.__new__(PolicyWorker)
    rank.actor, rank.args, rank.loss = actor, args, PolicyLoss(args)
    rank.metrics = SimpleNamespace(note=lambda *_: None, note_update=lambda: None)
    rank.loss.rollouts = torch.zeros(1, dtype=torch.long)
    normalizer = rank.loss.compute_normalizer([batch["action_mask"]], [rank.loss.rollouts], lambda counts: counts)
    rank.loss.scale = 1 / normalizer
    model: Any = actor.model
    model.backward, model.step = (lambda loss: loss.backward()), (lambda: None)

    def step() -> dict[str, float]:
        actor.zero_grad()
        return dict(rank._train(SimpleNamespace(**batch, action_log_probs=None, replay=None)))

    return step


def _compare(losses: dict[str, dict[str, float]], trained: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return by how much the results of a step differ. Raises RuntimeError if rounding does not explain it."""
    if trained["stock"].keys() != trained["ours"].keys():
        raise RuntimeError("stock and ours train other parameters")
    gradients = {
        side: torch.cat([of_side[name].grad.float().flatten() for name in trained["stock"]])
        for side, of_side in trained.items()
    }
    error = (gradients["ours"] - gradients["stock"]).norm() / gradients["stock"].norm()
    differences = {"gradient_difference": float(error)}
    for name, key in (("loss", "policy_loss"), ("entropy", "entropy_loss")):
        differences[f"{name}_difference"] = abs(float(losses["stock"][key]) - float(losses["ours"][key]))
    if not max(differences.values()) < _TOLERANCE:
        raise RuntimeError(f"stock and ours do not agree: {differences}")
    return differences
