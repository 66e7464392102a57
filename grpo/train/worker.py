"""A rank of the actor: its share of a step's update, its forward passes, its part of the sync and of a checkpoint.

:meth:`PolicyWorker._train` adds up the terms of the loss: the policy's (:mod:`grpo.train.loss`), the KL, the balance of
the experts, and the entropy. Each is normalized over the whole optimizer batch. Every term reads its flags from
``args``: the launcher passes those that were given on (:mod:`grpo.launch.flags`), and OpenRLHF's own parser, with our
flags, reads them in the driver (openrlhf/cli/train_ppo_ray.py).
"""

import os
from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import deepspeed
import ray
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from openrlhf.models import Actor
from openrlhf.trainer.ray.launcher import BaseModelActor
from openrlhf.utils import get_tokenizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import enable_full_determinism, set_seed

from grpo.checkpoint import saving
from grpo.lora import sync
from grpo.metrics.token_recorder import ActorMetrics
from grpo.model import cpu_matmul, expert_lora, loading, model_files, vocabulary, zero
from grpo.model.architecture import OF_ENGINE, Architecture
from grpo.model.routing import replay_choices
from grpo.model.shared_base import Description, MappedBase
from grpo.rollout.rows import Batch
from grpo.run.run_files import RunFiles
from grpo.stack import cluster, machine, rendezvous
from grpo.stack.hub import downloaded_folder
from grpo.stack.upstream import EngineActor
from grpo.train import micro_batches, optimizer_steps, passes, reference
from grpo.train.loss import PolicyLoss, Ranks
from grpo.train.optimizer_steps import LearningRate


class PolicyWorker(BaseModelActor):
    """One rank of the actor, in a Ray actor of its own. All calls are collective: every rank gets them."""

    _get_free_port = staticmethod(cluster.free_port)  # OpenRLHF's port may be taken before the ranks meet

    def init_model_from_pretrained(
        self, strategy: Any, pretrain: str, max_steps: int, engines: list[EngineActor]
    ) -> None:
        """Load the model with its adapter, optimizer and schedule, and the checkpoint to resume from.

        Args:
            strategy: OpenRLHF's ``DeepspeedStrategy``.
            max_steps: optimizer steps of the schedule.
        """
        self.strategy, self.args, self.engines = strategy, strategy.args, engines
        self.ranks = self._join_ranks()
        self.base = self._map_base() if self.args.actor_shard == OF_ENGINE else None
        self.actor = self._load(pretrain)
        self._start_engine(max_steps)
        self.controller_states = saving.load_step(self.actor.model, self.args)
        self.metrics = ActorMetrics(self.args, self.actor.model)
        self.loss = PolicyLoss(self.args)
        self.rollouts: list[list[Batch]] = []  # of the step, each with its rows
        dist.barrier()

    def _join_ranks(self) -> Ranks:
        """Bind the rank to the cores next to its GPU, seed it, and meet the others in a private file."""
        if bound := machine.bind_to_gpu():
            print(f"rank {os.environ['RANK']}: {bound}", flush=True)
        zero.shorten_start()
        rendezvous.install()
        args = self.args
        (enable_full_determinism if args.full_determinism else set_seed)(args.seed)
        get_accelerator().set_device(int(os.environ["LOCAL_RANK"]))
        cpu_matmul.install(torch.float32)
        deepspeed.init_distributed(timeout=timedelta(minutes=60))  # OpenRLHF's limit; DeepSpeed's is 30
        world_size = dist.get_world_size()
        return Ranks(world_size, args.train_batch_size // args.micro_train_batch_size // world_size)

    def _map_base(self) -> MappedBase:
        """Map the frozen base of the engine on this rank's GPU."""
        description: Description = ray.get(self.engines[dist.get_rank()].describe_base.remote())  # MappedBase checks it
        print(f"rank {dist.get_rank()}: maps the engine's base, digest {description['digest']}", flush=True)
        return MappedBase(description)

    def _load(self, pretrain: str) -> Actor:
        args = self.args
        shape = Architecture.from_config(model_files.read_json(downloaded_folder(pretrain) / "config.json"))
        actor = Actor(
            pretrain,
            experts=args.experts,
            shard=args.actor_shard,
            base=self.base,
            attn_implementation=args.attn_implementation,
            param_dtype=args.param_dtype,
            lora_rank=args.lora_rank,
            lora_alpha=args.lora_alpha,
            target_modules=expert_lora.list_target_modules(args.target_modules),
            expert_rank=shape.find_expert_rank(args),
            ds_config=zero.tune(self.strategy.get_ds_train_config(None), args),
            temperature=args.temperature,
            router_logits=passes.has_balancing_loss(args),
        )
        if args.adapter:
            saving.load_adapter(actor.model, RunFiles(Path(args.run_dir)).start)
            if args.init_kl_coef > 0:
                reference.keep_start(actor.model)
        fast = not args.disable_fast_tokenizer
        self.tokenizer = get_tokenizer(pretrain, actor.model, "left", self.strategy, use_fast=fast)
        actor.allocated = vocabulary.find_allocated(self.tokenizer)
        if args.gradient_checkpointing:
            actor.gradient_checkpointing_enable({"use_reentrant": args.gradient_checkpointing_use_reentrant})
        return actor

    def _start_engine(self, max_steps: int) -> None:
        """Put DeepSpeed's engine around the model, with PyTorch's fused AdamW, which needs no compiler."""
        args, model = self.args, self.actor.model
        adapter = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(
            adapter, lr=args.actor_learning_rate, betas=args.adam_betas, weight_decay=args.l2, fused=True
        )
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=optimizer,
            lr_scheduler=LambdaLR(optimizer, LearningRate.of_run(args, max_steps).compute_share),
            config=zero.tune(self.strategy.get_ds_train_config(None), args),  # OpenRLHF ignores the None
            args={"local_rank": int(os.environ["LOCAL_RANK"])},
            dist_init_required=True,  # as OpenRLHF; a second call does nothing
        )
        loading.restore_rope(engine)  # DeepSpeed has cast YaRN's frequencies
        self.actor.model = engine

    def empty_cache(self) -> None:
        """Free the device memory that nothing uses."""
        get_accelerator().empty_cache()
        get_accelerator().synchronize()

    # The update of a step

    def append(self, batch: Batch) -> None:
        """Take a micro-batch of a step, whose advantages are known.

        Rollouts that --mask_truncated masks lose their tokens here. They count in their group, but not in the loss and
        its denominator, in KL and entropy terms, and in metrics of the update. The controller's own metrics see them.
        """
        for rows in micro_batches.split_by_rollout(batch):
            if rows[0].info.get("masked_rollouts", 0) > 0:  # absent without --mask_truncated
                for row in rows:
                    row.action_mask = torch.zeros_like(row.action_mask)
            self.rollouts.append(rows)

    def update(self) -> dict[str, Any]:
        """Train on the step's rollouts; return the rank's notes (:meth:`ActorMetrics.pop`) and means over all ranks."""
        args, device = self.args, get_accelerator().current_device_name()
        self.empty_cache()
        loader = DataLoader(
            cast(Any, self.rollouts),
            batch_size=args.micro_train_batch_size,
            shuffle=True,  # otherwise the first optimizer step would get the first prompts alone
            drop_last=True,  # drops nothing: the launcher refuses rollouts that do not fit
            pin_memory=True,
            collate_fn=micro_batches.join_rollouts,
        )
        means = [
            self._train(micro_batch.to_device(device))
            for _ in range(args.max_epochs)
            for micro_batch in tqdm(self._iterate(loader), "train", len(loader), disable=dist.get_rank() > 0)
        ]
        self.rollouts.clear()
        self.empty_cache()
        return self._average_over_ranks(means) | self.metrics.pop()

    def _iterate(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the micro-batches; each sets its routing, and what the loss needs from its whole optimizer batch."""
        prepare = partial(passes.set_old_log_probs, self.forward) if optimizer_steps.is_in_update(self.args) else None
        return passes.replay_each(self.actor, self.loss.iterate_batches(loader, self.ranks, prepare))

    def _train(self, batch: Batch) -> dict[str, float]:
        """Run the forward and backward pass of a micro-batch; the last one of an optimizer batch also steps."""
        args, mask = self.args, batch.action_mask
        self.actor.train()  # also switches gradient checkpointing on
        log_probs_BA, output = self.actor(
            batch.sequences, mask, attention_mask=batch.attention_mask, return_output=True
        )
        old_BA = passes.choose_old_log_probs(args, batch, log_probs_BA)
        loss = policy_loss = self.loss(log_probs_BA, old_BA, batch.advantages, mask, batch.rollout_log_probs)
        means = {"policy_loss": policy_loss.item()}
        if args.use_kl_loss:  # otherwise the KL is part of the advantages
            base_BA = batch.base_action_log_probs
            assert base_BA is not None
            loss = loss + self.loss.compute_kl_loss(log_probs_BA, old_BA, base_BA, mask) * args.init_kl_coef
        if passes.has_balancing_loss(args):
            loss = loss + output.aux_loss * args.aux_loss_coef
        if args.entropy_loss_coef is not None:
            entropy_BA = output.scores.entropy[:, -1 - mask.shape[1] : -1]  # the last position predicts nothing
            means["entropy_loss"] = ((entropy_BA * mask).sum() / mask.sum().clamp(min=1)).item()
            if args.entropy_loss_coef:  # at 0 it is only a metric and needs no backward pass
                loss = loss - self.loss.aggregate(entropy_BA, mask) * args.entropy_loss_coef
        self.metrics.note(batch, log_probs_BA, old_BA, output, policy_loss, self.loss.per_token)
        self.actor.model.backward(loss)
        self.actor.model.step()  # DeepSpeed steps the optimizer after the last micro-batch of its batch
        self.metrics.note_update()
        return means

    def _average_over_ranks(self, means: list[dict[str, float]]) -> dict[str, float]:
        """Return the means over all micro-batches of all ranks."""
        columns = {name: torch.tensor([row[name] for row in means]) for name in means[0]}
        shares = {name: self.ranks.sum(values / self.ranks.world_size) for name, values in columns.items()}
        return {name: sum(values.tolist()) / len(means) for name, values in shares.items()}

    # Forward passes without gradients

    @torch.no_grad()
    def forward(
        self,
        sequences: torch.Tensor,
        action_mask: torch.Tensor,
        attention_mask: torch.Tensor,
        routing: list[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Return the policy's log-probs of a micro-batch, ``[B, A]``.

        Args:
            sequences, attention_mask: ``[B, S]``.
            action_mask: ``[B, A]``.
            routing: the engine's choice of experts for each row, which the routers then take.
        """
        device = get_accelerator().current_device_name()
        self.actor.eval()
        with replay_choices(self.actor, routing, sequences.shape[1], device):
            inputs = (tensor.to(device) for tensor in (sequences, action_mask, attention_mask))
            log_probs: torch.Tensor = self.actor(*inputs)
        self.actor.train()
        return log_probs.cpu()

    def reference_forward(self, *inputs: Any, **named: Any) -> torch.Tensor:
        """Return the log-probs of a micro-batch by the policy that the run started from, ``[B, A]``."""
        with reference.as_reference(self.actor):
            return self.forward(*inputs, **named)

    def base_forward(self, *inputs: Any, **named: Any) -> torch.Tensor:
        """Return the log-probs of a micro-batch by the actor without its adapter, ``[B, A]``."""
        with reference.without_adapter(self.actor):
            return self.forward(*inputs, **named)

    # Sync and checkpoints

    def sync(self) -> None:
        """Send the adapter to the engines."""
        self.metrics.engine_memory = sync.sync_adapter(self.actor.model.module, self.engines)

    def save(self, states: dict[str, Any]) -> None:
        """Save adapter and trainer state as a checkpoint of the step that the controller's states name."""
        if self.base:
            self.base.check()  # an adapter trained on other weights than its base's is worth nothing
        saving.save_step(self.actor.model, self.args, states)

    def states(self) -> dict[str, Any]:
        """Return the controller's states in the checkpoint that was loaded."""
        return self.controller_states

    def save_model(self) -> None:
        """Save the adapter of the last step as the run's result."""
        self.strategy.save_model(self.actor, self.tokenizer, self.args.save_path)  # patched: the adapter alone
