"""The controller: GRPO as a loop over steps. :meth:`Trainer.train_step` is the step, top to bottom.

A step samples G prompts with N rollouts each, rewards them, and updates the adapter. The recipe as shipped
(train_grpo.sh) leaves out much of the paper's GRPO (https://arxiv.org/abs/2402.03300). What remains is close to
REINFORCE with the mean of the group as baseline:

1. No reference model and no KL: a graded answer is hard to game, and the reference costs a forward pass. --init_kl_coef
   adds a KL, to the reward (:mod:`grpo.train.passes` computes it, :mod:`grpo.train.advantages` subtracts it) or with
   --use_kl_loss to the loss (:meth:`grpo.train.worker.PolicyWorker._train`).
   The reference is the actor as it started (:mod:`grpo.train.reference`, which also has the formulas).
2. One optimizer step on the rollouts of the current policy: the ratio is 1 and nothing is clipped. --eps_clip acts with
   a smaller --train_batch_size, or with --pipeline, whose rollouts are a step old.
3. No division by the deviation of the group (--advantage_estimator dr_grpo): it favors problems that are nearly always
   or nearly never solved. A group whose rollouts all have the same reward gets an advantage of exactly 0, and stays in
   the batch.
4. A mean over all tokens of the optimizer batch (--loss_aggregation token_mean), however it is split into micro-batches
   and ranks. The paper's mean over each rollout first makes long wrong answers cheap.
5. No correction for the difference between the log-probs of engines and actor. It is a metric, and the parity gate
   ends a run in which it is large.

An engine or a rank that dies ends the loop: the next ``ray.get`` of one of its results raises. An engine's actor dies
with vLLM's core (grpo/rollout/engine.py). The launcher ends what is left and, up to --restarts times, continues from
the newest checkpoint (grpo/launch/attempt.py).
"""

import logging
import math
from copy import deepcopy
from typing import Any

import ray
from openrlhf.utils import get_tokenizer

from grpo.checkpoint import trainer_state
from grpo.checkpoint.on_request import SaveOnRequest
from grpo.metrics import step_metrics
from grpo.rollout.rows import Batch, Sample
from grpo.run.evaluation import Evaluation
from grpo.run.parity_gate import ParityGate
from grpo.run.run_log import RunLog, open_log
from grpo.stack.upstream import ActorGroup, EngineActor
from grpo.train import advantages, micro_batches, optimizer_steps, passes, rewards, rollout_filters
from grpo.train.advantages import Advantages
from grpo.train.lengths import Schedule
from grpo.train.prefetch import Prefetch
from grpo.train.sampler import Sampler, make_loaders

logger = logging.getLogger("openrlhf.grpo.trainer")  # under OpenRLHF's logger, whose handler writes to logs/driver.log


class Trainer:
    """Runs the loop, in the driver.

    Attributes:
        step, episode: the last completed ones; episodes count from 0.
        drawn_prompts: in all steps so far.

    Args:
        strategy: OpenRLHF's ``DeepspeedStrategy``; its ``args`` are those of the run.
        actors: the ranks, see :class:`grpo.train.worker.PolicyWorker`.
        critic, reward_model, reference: OpenRLHF's trainer may have these models; ours has none.
    """

    step: int
    episode: int
    drawn_prompts: int
    lengths: Schedule
    gate: ParityGate
    sampler: Sampler
    prefetch: Prefetch
    log: RunLog
    saver: SaveOnRequest
    evaluation: Evaluation

    def __init__(
        self,
        pretrain: str,
        strategy: Any,
        actors: ActorGroup,
        critic: None,
        reward_model: None,
        reference: None,
        engines: list[EngineActor],
        **_: Any,  # OpenRLHF's sampling parameters, which args has too
    ) -> None:
        self.args = args = strategy.args
        for name in ("eval_steps", "save_steps"):
            if getattr(args, name) == -1:  # OpenRLHF's word for never
                setattr(args, name, float("inf"))  # n % inf is n, and steps count from 1
        self.actors, self.engines = actors, engines
        # The side is OpenRLHF's and has no effect: nothing pads with the tokenizer.
        self.tokenizer = get_tokenizer(pretrain, None, "left", strategy, use_fast=not args.disable_fast_tokenizer)
        self.problems, self.held_out = make_loaders(strategy, self.tokenizer)

    def get_max_steps(self) -> int:
        """Return the optimizer steps of the run, for the schedule of the learning rate."""
        problems = len(self.problems.dataset)
        return optimizer_steps.count_steps(self.args, problems) * optimizer_steps.count_updates(self.args)

    def fit(self) -> None:
        """Train from the start, or from the checkpoint that the ranks have loaded."""
        self._start(ray.get(self.actors.async_run_method("states"))[0])  # every rank returns the same
        self.evaluation.run_first(self.step)
        for episode in range(self.episode, self.args.num_episodes):
            while not self._is_last(self.step) and self.train_step(episode):
                pass
        with self.log.phase("save"):
            self.saver.save_last()
        self.evaluation.run_last(self.step)
        self.log.trackers.close()

    def train_step(self, episode: int) -> bool:
        """Run the next global step; return False if the episode has too few prompts left for it.

        G prompts with N rollouts each are R = G * N rollouts. They are in micro-batches of B rows (more with branches)
        of S tokens, which A = S - 1 positions predict.
        """
        number, args = self.step + 1, self.args
        if args.pipeline and not self._is_last(number):
            self.prefetch.start_next_batch(episode, number)  # while this step trains
        drawn = self.prefetch.take(episode, number)  # the engines have sampled and rewarded it
        self.drawn_prompts += drawn.prompts
        if drawn.is_over:
            return False
        rollouts_R = drawn.rollouts

        self.saver.begin_step()  # from here on, the ranks and the adapter change: no checkpoint on request
        with self.log.phase("old_log_probs"):
            batches, advantages_GN = self._compute_advantages(rollouts_R)
        self._compare_with_engines(number, batches, rollouts_R)  # before the update: a wrong engine teaches nonsense
        with self.log.phase("train"):
            status = self._update(batches)
        self._add_metrics(status, batches, advantages_GN, rollouts_R)

        self.prefetch.wait_until_sampled()  # no engine changes its adapter within a rollout
        with self.log.phase("sync"):
            self._sync()
        self.step, self.episode = number, episode
        self.log.write_rollouts(number, rollouts_R, self.tokenizer)  # before the checkpoint: a resume draws no others
        self.saver.end_step(number, self._collect_states(status, rollouts_R), self.log.phase)
        self.log.write_step(number, status)
        logger.info("step %d: %s", number, status)
        if number % args.eval_steps == 0:
            self.evaluation.run(number)
        return True

    # The parts of a step

    def _compute_advantages(self, rollouts_R: list[Sample]) -> tuple[list[Batch], Advantages]:
        """Return the rollouts as micro-batches with log-probs and advantages, and the advantages of the groups.

        Advantages are computed on whole groups, [G, N], before rollouts are cut into micro-batches of rows, [B, A].
        """
        args = self.args
        rewards.complete(rollouts_R, args.n_samples_per_prompt)
        advantages_GN = advantages.compute(rollouts_R, args)
        batches = micro_batches.build(rollouts_R, args.micro_rollout_batch_size, self.tokenizer.pad_token_id)
        passes.add_log_probs(batches, args, self.actors)
        advantages.assign_to_tokens(batches, advantages_GN, args)  # less the KL of the reward, which needs log-probs
        return batches, advantages_GN

    def _compare_with_engines(self, number: int, batches: list[Batch], rollouts_R: list[Sample]) -> None:
        """Stop the run if engines and trainer disagree on rollouts of the policy that the trainer now holds.

        With --pipeline those are in the batch of the next step, for which a comparison therefore waits.
        """
        if self.prefetch.compute_staleness() == 0:
            self.gate.check(self.log, number, batches, rollouts_R)
        elif self.gate.is_due() and (next_rollouts := self.prefetch.get_next_rollouts()):
            with self.log.phase("old_log_probs"):
                now, _ = self._compute_advantages(deepcopy(next_rollouts))  # it changes rollouts, and their step comes
            self.gate.check(self.log, number, now, next_rollouts)

    def _update(self, batches: list[Batch]) -> dict[str, Any]:
        """Let the ranks train on the micro-batches; return what they report, merged."""
        ray.get(self.actors.async_run_method_batch("append", batch=batches))
        return step_metrics.merge(ray.get(self.actors.async_run_method("update")))

    def _add_metrics(
        self, status: dict[str, Any], batches: list[Batch], advantages_GN: Advantages, rollouts_R: list[Sample]
    ) -> None:
        """Add the metrics of the step to its status, and count its updates, which lead to the engines' next policy."""
        assert self.prefetch.current is not None
        status |= rollout_filters.compute_metrics(self.args, self.prefetch.current.groups)
        if self.args.pipeline:
            status["staleness"] = float(self.prefetch.compute_staleness())
        self.prefetch.policy += len(status.get("grad_norms", []))  # one norm per optimizer step
        if not math.isnan(advantages_GN.zero_spread_groups):
            status["zero_spread_groups"] = advantages_GN.zero_spread_groups
        step_metrics.add_step_metrics(status, batches, rollouts_R, self.tokenizer)

    def _sync(self) -> None:
        """Send the adapter to the engines."""
        if self.args.vllm_enable_sleep:
            self.sampler.wake_up(["weights"])
        ray.get(self.actors.async_run_method("sync"))

    def _is_last(self, number: int) -> bool:
        return self.args.max_steps is not None and number >= self.args.max_steps

    # Start and checkpoints

    def _start(self, states: dict[str, Any]) -> None:
        """Continue from the states of a checkpoint; {} at the start of a run."""
        args = self.args
        self.step, self.episode = states.get("global_step", 0), states.get("episode", 0)
        self.drawn_prompts = states.get("total_consumed_prompts", 0)
        self.lengths = Schedule(args, states.get("lengths"))
        self.gate = ParityGate(args, self.actors, self.engines)
        self.sampler = Sampler(
            args, self.tokenizer, self.engines, self.problems, self.held_out, self.lengths, self.gate
        )
        self.log = open_log(args, self.problems.dataset, self.step, states)
        self.prefetch = Prefetch(args, self.sampler, self.log)
        if self.step or args.adapter:  # otherwise the adapter is zero
            self._sync()
        if self.step:
            self._restore(states)
        self.saver = SaveOnRequest(args, self._save, self.step)
        self.evaluation = Evaluation(args, self.tokenizer, self.held_out, self.sampler.sample_held_out, self.log)

    def _restore(self, states: dict[str, Any]) -> None:
        """Restore the position in the problems, the random states, and what has been sampled for later steps."""
        if states["data_loader_state_dict"]:
            self.problems.load_state_dict(states["data_loader_state_dict"])
        self.sampler.restore_prompts()  # uses random numbers, so before their states
        trainer_state.set_random_state(states["random"])
        if "next_batch" in states:
            self.prefetch.restore(states["next_batch"])

    def _collect_states(self, status: dict[str, Any], rollouts_R: list[Sample]) -> dict[str, Any]:
        """Return the states for a checkpoint of the last step.

        A value may be a function that first waits for its state, see :class:`SaveOnRequest`.
        """
        next_batch = self.prefetch.get_state()
        return {
            "episode": self.episode,
            "global_step": self.step,
            "total_consumed_prompts": self.drawn_prompts,
            "data_loader_state_dict": self.problems.state_dict(),
            **trainer_state.collect_controller_state(status),
            **({"next_batch": next_batch} if next_batch else {}),
            "lengths": self.lengths.count_truncated(self.step, rollouts_R),  # counts the step, so only once
        }

    def _save(self, states: dict[str, Any]) -> None:
        ray.get(self.actors.async_run_method("save", states=states))
