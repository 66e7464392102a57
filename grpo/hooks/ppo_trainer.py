"""Hooks of openrlhf/trainer/ppo_trainer.py: the loop over steps, on the controller."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Protocol

from grpo.batch import ahead, filtering, length_schedule, unfinished
from grpo.checkpoint import trainer_state
from grpo.checkpoint.on_request import SaveOnRequest
from grpo.metrics import step_metrics
from grpo.rollout import replacement
from grpo.run import evaluation, parity_gate, run_log
from grpo.stack.upstream.arguments import Arguments
from grpo.stack.upstream.experience import Batch, Sample
from grpo.stack.upstream.trainer import PPOTrainer


class Controller(PPOTrainer, Protocol):
    """``PPOTrainer`` with what the hooks add to it.

    Attributes:
        batches: hands out the batch of each step, from :func:`start_log`.
        lengths: the limits on response length, from :func:`length_limits`.
        parity_gate: compares engines and trainer, from :func:`start_log`.
        run_log: the run directory, from :func:`start_log`.
        saver: saves checkpoints that no ``--save_steps`` asks for, from :func:`start_log`.
    """

    batches: ahead.Batches
    lengths: length_schedule.Schedule
    parity_gate: parity_gate.ParityGate
    run_log: run_log.RunLog
    saver: SaveOnRequest


# Before the loop


def length_limits(args: Arguments, states: dict[str, Any]) -> length_schedule.Schedule:
    """Return the run's limits on response length, in the state of the checkpoint."""
    return length_schedule.Schedule(args, states.get("lengths"))


def restore(trainer: PPOTrainer, states: dict[str, Any]) -> None:
    """Restore the controller's state from a checkpoint."""
    trainer_state.restore_controller(trainer, states)
    filtering.restore(trainer.samples_generator, states.get("groups"))


def start_log(trainer: Controller, states: dict[str, Any]) -> run_log.RunLog:
    """Start the run's log, time the phases of the trainer's steps, and close the parity gate.

    A batch that a checkpoint holds is the next one. From here on, the launcher can ask for a checkpoint.
    """
    trainer.parity_gate = parity_gate.ParityGate()
    generator, args = trainer.samples_generator, trainer.args
    trainer.batches = batches = ahead.Batches(
        generator, lambda step: _sampling_arguments(trainer, step), args.num_episodes
    )
    if "ahead" in states or "unfinished" in states:
        from openrlhf.trainer.ppo_utils.experience_maker import Experience  # its module imports vLLM

        _restore_samples(trainer, states, Experience)
    log = run_log.attach(trainer, states)
    batches.timed, batches.note_seconds = log.timed, log.note_seconds
    trainer.saver = SaveOnRequest(trainer, states["global_step"])
    engines = replacement.of(generator)
    engines.phase, engines.note = log.replacing, log.write_replaced
    return log


def _restore_samples(trainer: Controller, states: dict[str, Any], make: Callable[[], Sample]) -> None:
    if "unfinished" in states:
        trainer.batches.policy = states["unfinished"]["policy"]
        unfinished.restore(trainer.samples_generator, states["unfinished"], make)
    if "ahead" in states:
        trainer.batches.restore(states["ahead"], make)


def _sampling_arguments(trainer: Controller, step: int) -> dict[str, Any]:
    return trainer.lengths.limited(trainer.generate_kwargs, step)


def evaluate_first(trainer: Controller, step: int) -> None:
    """Evaluate before the first step, if requested."""
    evaluation.run_first(trainer, step)


# One step


def is_finished(args: Arguments, step: int) -> bool:
    """Return whether the run has made all its steps."""
    return run_log.is_finished(args, step)


def next_batch(trainer: Controller, episode: int, step: int) -> ahead.Result:
    """Return the rollouts of a step. With PIPELINE=1, start to sample those of the step after it, before its rewards.

    Returns:
        as OpenRLHF's ``generate_samples``: rollouts, pass rate of dynamic filtering, prompts drawn, whether the episode
        ended before the batch was full.
    """
    args = trainer.args
    trainer.samples_generator.records_routing = args.routing_replay or trainer.parity_gate.is_due(args)
    if args.pipeline and not is_finished(args, step):
        trainer.batches.sample_ahead(episode, step)
    return trainer.batches.take(episode, step)


def before_training(trainer: Controller, step: int, experiences: Sequence[Batch], samples: Sequence[Sample]) -> None:
    """Check that engines and trainer agree. Number the samples, so that the ranks' records can be matched to them.

    The two are compared on rollouts of the policy that the trainer holds now. With PIPELINE=1 those are in the batch of
    the next step, for which a comparison therefore waits.
    """
    gate, batches, args = trainer.parity_gate, trainer.batches, trainer.args
    whole = unfinished.of_one_policy(samples, batches.policy, args)
    if batches.staleness() == 0 and len(whole) == len(samples):
        gate.check(trainer, step, experiences, samples)
    elif gate.is_due(args) and (samples := unfinished.of_one_policy(batches.next_samples(), batches.policy, args)):
        # Micro-batches are made of copies, since making them changes the samples.
        gate.check(trainer, step, trainer.experience_maker.make_experience_batch(deepcopy(samples)), samples)
    step_metrics.before_training(experiences)


def merge_status(status: dict[str, Any], result: dict[str, Any]) -> None:
    """Add the result of one rank's update to the status of the step."""
    step_metrics.merge(status, result)


def after_training(
    status: dict[str, Any], experiences: Sequence[Batch], samples: Sequence[Sample], trainer: Controller
) -> None:
    """Add the metrics to the status of the step. Wait until nothing is being sampled: the sync is next."""
    batches = trainer.batches
    assert batches.current is not None
    status |= filtering.finish_step(trainer.samples_generator, batches.current.groups)
    if trainer.args.pipeline:
        status["staleness"] = float(batches.staleness())
        status |= unfinished.metrics(samples, batches.policy, trainer.args)
    status["engines_replaced"] = float(replacement.of(trainer.samples_generator).replaced_since())
    batches.policy += len(status.get("grad_norms", []))
    step_metrics.after_training(status, experiences, samples, trainer.args, trainer.tokenizer)
    if trainer.args.pipeline:
        batches.wait()
        unfinished.cut(trainer.samples_generator)


def note_sync(trainer: PPOTrainer, sent: Sequence[Any]) -> None:
    """Keep what a sync has sent, for an engine that is started again.

    Args:
        sent: what each rank returned; with an adapter, the first one's is a :class:`grpo.lora.sync.Sent`.
    """
    replacement.of(trainer.samples_generator).adapter = sent[0]


def log_rollouts(trainer: Controller, step: int, samples: Sequence[Sample]) -> None:
    """Write the rollouts of the step, before its checkpoint."""
    trainer.run_log.write_rollouts(step, samples, trainer.tokenizer)


def states(trainer: Controller, status: dict[str, Any]) -> dict[str, Any]:
    """Return the controller's states for a checkpoint, besides OpenRLHF's own.

    A function returns what must still be waited for, see :class:`grpo.checkpoint.on_request.SaveOnRequest`.
    """
    kept = trainer_state.of_controller(_without_double(status)) | {"groups": filtering.state(trainer.samples_generator)}
    kept |= unfinished.state(trainer.samples_generator, trainer.batches.policy)
    waiting = trainer.batches.state()
    return kept if waiting is None else kept | {"ahead": waiting}


def lengths_after(trainer: Controller, step: int, samples: Sequence[Sample]) -> dict[str, Any]:
    """Advance the limit on response length; return its state for the checkpoint."""
    return trainer.lengths.after_step(step, samples)


def log_step(trainer: Controller, step: int, status: dict[str, Any]) -> None:
    """Append the line of the step to metrics.jsonl."""
    trainer.run_log.write_step(step, _without_double(status))


def _without_double(status: dict[str, Any]) -> dict[str, Any]:
    """Leave out what OpenRLHF adds from 0.9.4 on, and the log has already.

    These are the seconds of phases, and the gradient norm, as a mean over micro-batches instead of optimizer steps.
    """
    return {name: value for name, value in status.items() if name != "actor_grad_norm" and "timing/" not in name}


def evaluate(trainer: Controller, step: int) -> None:
    """Evaluate on the held-out set."""
    evaluation.run(trainer, step)


# After the loop


def evaluate_last(trainer: Controller, step: int) -> None:
    """Save the last step and evaluate it."""
    trainer.run_log.timed("save", trainer.saver.save_last)()
    evaluation.run_last(trainer, step)


def close(trainer: Controller) -> None:
    """Close the services that received the run's numbers."""
    trainer.run_log.trackers.close()
