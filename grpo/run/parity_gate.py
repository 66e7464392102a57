"""The gate: engines and trainer must agree before the first optimizer step, and once the adapter changes something.

The engines' log-probs are those of sampling: they include temperature, adapter, routing, and prefix cache. The ranks
score the same tokens, with and without the adapter. See :mod:`grpo.metrics.parity` for what is compared.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from grpo.lora import adapter
from grpo.metrics.parity import PolicyMismatch
from grpo.metrics.scored_rollouts import Rollout, compare
from grpo.run.run_log import LoggedTrainer
from grpo.stack.upstream.arguments import Arguments
from grpo.stack.upstream.engine import EngineActor
from grpo.stack.upstream.experience import Batch, Sample
from grpo.update import passes

ROWS = 64  # rollouts that are scored: seconds of a step of the 120b


class ParityGate:
    """Compares engines and trainer until one comparison has included an adapter that is not zero."""

    def __init__(self) -> None:
        self._is_open = False

    def is_due(self, args: Arguments) -> bool:
        """Return whether the next step is compared."""
        return not self._is_open and is_compared(args)

    def check(self, trainer: LoggedTrainer, step: int, batches: Sequence[Batch], samples: Sequence[Sample]) -> None:
        """Compare on some of the step's rollouts, and write the result to parity.jsonl.

        Args:
            step: the global step.
            batches: the micro-batches of the step, as many on each rank.
            samples: the rollouts that :attr:`Batch.index` counts.

        Raises:
            PolicyMismatch: if rounding does not explain the difference.
        """
        if not self.is_due(trainer.args):
            return
        chosen, limit = choose(trainer.args, batches), trainer.args.parity_limit
        rollouts = score(trainer, chosen, samples, passes.of_batches(chosen))
        if not rollouts:
            return
        comparison = compare(rollouts)
        self._is_open = comparison.has_adapter
        problems = list(comparison.problems(limit))
        cause = routing_as_cause(trainer, chosen, samples, limit) if problems else ""
        shown = [{"what": problem.what, "remedy": problem.remedy} for problem in problems]
        row = {"step": step, "time": time.time(), "limit": limit, **comparison.as_dict(), "problems": shown}
        trainer.run_log.write_parity(row | {"routing": cause})
        if problems:
            raise PolicyMismatch(
                f"step {step}: engines and trainer are not the same policy, so the run stops before it trains on these "
                f"samples: {problems[0].what}; {cause}",
                f"{problems[0].remedy}; see docs/parity.md. PARITY_LIMIT=0 trains without this check",
            )


def is_compared(args: Arguments) -> bool:
    """Return whether a run can be compared: below a top_p of 1, engines report log-probs of another distribution."""
    return args.parity_limit > 0 and args.top_p == 1 and adapter.is_trained(args)


def choose(args: Arguments, batches: Sequence[Batch]) -> list[Batch]:
    """Return about ROWS rows of the micro-batches, evenly spaced, and as many on each rank."""
    ranks = args.actor_num_nodes * args.actor_num_gpus_per_node
    per_batch = len(batches[0].sequences)
    count = max(ranks, min(len(batches), -(-ROWS // per_batch)) // ranks * ranks)  # forward passes are collective
    return [batches[number * len(batches) // count] for number in range(count)]


def score(
    trainer: LoggedTrainer, batches: Sequence[Batch], samples: Sequence[Sample], routing: Mapping[str, Any]
) -> list[Rollout]:
    """Let the ranks score micro-batches, with their adapter and without it.

    Args:
        routing: the argument of the passes that replays routings, or {}.

    Returns:
        The rollouts whose engine is known and that have sampled tokens; branches are left out.
    """
    args, group = trainer.args, trainer.actor_model_group
    inputs: dict[str, Any] = {
        name: [getattr(batch, name) for batch in batches] for name in ("sequences", "action_mask", "attention_mask")
    }
    now, base = (
        [values for part in ray.get(group.async_run_method_batch(method, **inputs, **routing)) for values in part]
        for method in ("forward", "reference_forward")
    )
    engines = {actor_id(engine): number for number, engine in enumerate(trainer.vllm_engines)}
    ranks = args.actor_num_nodes * args.actor_num_gpus_per_node
    prompts: dict[str, int] = {}
    rollouts = []
    for number, batch in enumerate(batches):
        for row, index in enumerate(batch.index):
            sampled_by = getattr(samples[index], "sampled_by", None)
            mask = batch.action_mask[row].bool()  # nothing of a rollout without a reward
            if batch.rollout_log_probs is None or sampled_by not in engines or not mask.any():
                continue
            sides = (side[row][mask] for side in (batch.rollout_log_probs, now[number], base[number]))
            positions = mask.nonzero().flatten() + 1  # column t predicts token t + 1
            prompt = prompts.setdefault(samples[index].prompts[0], len(prompts))
            rollouts.append(Rollout(engines[sampled_by], number * ranks // len(batches), prompt, positions, *sides))
    return rollouts


def routing_as_cause(trainer: LoggedTrainer, batches: Sequence[Batch], samples: Sequence[Sample], limit: float) -> str:
    """Say whether the engines' choice of experts explains the difference: replay it, and compare again."""
    if trainer.args.routing_replay:
        return "the engines' choice of experts was replayed, so it is not the cause"
    routings = [[getattr(samples[index], "engine_routing", None) for index in batch.index] for batch in batches]
    if any(routing is None for of_batch in routings for routing in of_batch):
        return "the engines' choice of experts was not recorded, so it may be the cause"
    replayed = compare(score(trainer, batches, samples, {"routing": routings}))
    left = next(replayed.problems(limit), None)
    if left is None:
        mean = replayed.rows[0].mean
        return f"it is the choice of experts: with the engines' replayed, the mean is {mean} nat; set ROUTING_REPLAY=1"
    return f"it is not the choice of experts: with the engines' replayed, {left.what}"


def actor_id(engine: EngineActor) -> str:
    """Return the id by which an engine's actor names itself in its responses."""
    name: str = engine._actor_id.hex()
    return name
