"""The gate: engines and trainer must agree before the first optimizer step, and once the adapter changes something.

The engines' log-probs are those of sampling: they include temperature, adapter, routing, and prefix cache. The ranks
score the same tokens, with and without the adapter. See :mod:`grpo.metrics.parity` for what is compared.
"""

import time
from collections.abc import Sequence
from typing import Any

import ray

from grpo.lora import adapter
from grpo.metrics.scored_rollouts import Rollout, compare
from grpo.run.run_log import LoggedTrainer
from grpo.stack.problem import UserError
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
            UserError: if rounding does not explain the difference.
        """
        if not self.is_due(trainer.args):
            return
        rollouts = scored(trainer, batches, samples)
        if not rollouts:
            return
        comparison, limit = compare(rollouts), trainer.args.parity_limit
        self._is_open = comparison.has_adapter
        problems = list(comparison.problems(limit))
        shown = [{"what": problem.what, "remedy": problem.remedy} for problem in problems]
        row = {"step": step, "time": time.time(), "limit": limit, **comparison.as_dict(), "problems": shown}
        trainer.run_log.write_parity(row)
        if problems:
            table = "\n".join(comparison.table())
            what = "\n".join(f"  {problem.what}\n    {problem.remedy}" for problem in problems)
            raise UserError(
                f"step {step}: engines and trainer are not the same policy, so the run stops before it trains on "
                f"these samples\n{table}\n{what}",
                "see docs/parity.md; PARITY_LIMIT=0 trains without this check",
            )


def is_compared(args: Arguments) -> bool:
    """Return whether a run can be compared: below a top_p of 1, engines report log-probs of another distribution."""
    return args.parity_limit > 0 and args.top_p == 1 and adapter.is_trained(args)


def scored(trainer: LoggedTrainer, batches: Sequence[Batch], samples: Sequence[Sample]) -> list[Rollout]:
    """Let the ranks score some micro-batches, evenly spaced, with their adapter and without it.

    Returns:
        The rollouts whose engine is known and that have sampled tokens; branches are left out.
    """
    ranks = trainer.args.actor_num_nodes * trainer.args.actor_num_gpus_per_node
    per_batch = len(batches[0].sequences)
    count = max(ranks, min(len(batches), -(-ROWS // per_batch)) // ranks * ranks)  # forward passes are collective
    chosen = [batches[number * len(batches) // count] for number in range(count)]
    inputs: dict[str, Any] = {
        name: [getattr(batch, name) for batch in chosen] for name in ("sequences", "action_mask", "attention_mask")
    } | passes.of_batches(chosen)
    group = trainer.actor_model_group
    now, base = (
        [values for part in ray.get(group.async_run_method_batch(method, **inputs)) for values in part]
        for method in ("forward", "reference_forward")
    )
    engines = {actor_id(engine): number for number, engine in enumerate(trainer.vllm_engines)}
    rollouts = []
    for number, batch in enumerate(chosen):
        for row, index in enumerate(batch.index):
            sampled_by = getattr(samples[index], "sampled_by", None)
            mask = batch.action_mask[row].bool()  # nothing of a rollout without a reward
            if batch.rollout_log_probs is None or sampled_by not in engines or not mask.any():
                continue
            sides = (side[row][mask] for side in (batch.rollout_log_probs, now[number], base[number]))
            positions = mask.nonzero().flatten() + 1  # column t predicts token t + 1
            rollouts.append(Rollout(engines[sampled_by], number * ranks // count, positions, *sides))
    return rollouts


def actor_id(engine: EngineActor) -> str:
    """Return the id by which an engine's actor names itself in its responses."""
    name: str = engine._actor_id.hex()
    return name
