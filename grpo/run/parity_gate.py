"""The gate: engines and trainer must agree before the first optimizer step, and once the adapter changes something.

The engines' log-probs are those of sampling: they include temperature, adapter, routing, and prefix cache. The ranks
score the same tokens, with and without the adapter. See :mod:`grpo.metrics.parity` for what is compared.
"""

import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import ray

from grpo.metrics.parity import FEWEST, Comparison, Rollout, compare
from grpo.rollout.rows import Batch, Sample, drop_branches, list_inputs
from grpo.run.progress import PolicyMismatch
from grpo.run.run_log import RunLog
from grpo.stack.upstream import ActorGroup, Arguments, EngineActor

ROWS = 64  # rollouts that are scored: seconds of a step of the 120b
MOST = 8  # comparisons with the adapter, for an engine that hardly samples


class ParityGate:
    """Compares engines and trainer until each engine could be judged with an adapter that is not zero.

    From the first such step on, the rollouts of all steps are compared together: a step of few tokens judges no engine.
    """

    def __init__(self, args: Arguments, actors: ActorGroup, engines: Sequence[EngineActor]) -> None:
        self._args, self._actors, self._engines = args, actors, engines
        self._earlier: list[Rollout] = []
        self._since: int | None = None
        self._left = MOST

    def is_due(self) -> bool:
        """Return whether the next step is compared."""
        # Below a top_p of 1, engines report log-probs of another distribution.
        return self._left > 0 and self._args.parity_limit > 0 and self._args.top_p == 1

    def check(self, log: RunLog, step: int, batches: Sequence[Batch], samples: Sequence[Sample]) -> None:
        """Compare on some of the step's rollouts, and write the result to parity.jsonl.

        Raises PolicyMismatch if rounding does not explain the difference.
        """
        if not self.is_due():
            return
        chosen, limit = [drop_branches(batch) for batch in choose(self._args, batches)], self._args.parity_limit
        rollouts = self._score(chosen, samples, list_inputs(chosen))
        if not rollouts:
            return
        comparison = compare([*self._earlier, *rollouts])
        since, waits = self._since or step, ""
        if comparison.has_adapter:
            self._earlier, self._since = [*self._earlier, *rollouts], since
            waits = self._wait(comparison)
        problems = list(comparison.problems(limit))
        cause = self._routing_as_cause(chosen, samples, compare(rollouts)) if problems else ""
        shown = [{"what": problem.what, "remedy": problem.remedy} for problem in problems]
        row = {"step": step, "since": since, "time": time.time(), "limit": limit, **asdict(comparison)}
        log.write_parity(row | {"problems": shown, "routing": cause, "waits": waits, "table": comparison.table()})
        if problems:
            raise PolicyMismatch(
                f"step {step}: engines and trainer are not the same policy, so the run stops before it trains on these "
                f"rollouts: {problems[0].what}; {cause}",
                f"{problems[0].remedy}; see docs/parity.md. --parity_limit 0 trains without this check",
            )

    def _wait(self, comparison: Comparison) -> str:
        """Count a comparison with the adapter; name the engines that it could not judge, and say what follows."""
        names = [f"engine {number}" for number in range(len(self._engines))]
        judged = {row.name for row in comparison.rows if row.mean.parts >= FEWEST}
        waiting = [name for name in names if name not in judged]
        self._left = self._left - 1 if waiting else 0
        if not waiting:
            return ""
        then = "the next step, if any, is compared too" if self._left else f"no other step is compared after {MOST}"
        return f"too few tokens to judge {', '.join(waiting)}: {then}"

    def _score(self, batches: Sequence[Batch], samples: Sequence[Sample], inputs: Mapping[str, Any]) -> list[Rollout]:
        """Let the ranks score micro-batches with the inputs of :func:`list_inputs`, with their adapter and without it.

        Returns:
            The rollouts whose engine is known and that have sampled tokens; branches are left out.
        """
        args, group = self._args, self._actors
        now, base = (
            [values for part in ray.get(group.async_run_method_batch(method, **inputs)) for values in part]
            for method in ("forward", "base_forward")
        )
        engines = {engine._actor_id.hex(): number for number, engine in enumerate(self._engines)}
        ranks = args.actor_num_nodes * args.actor_num_gpus_per_node
        rollouts = []
        for number, batch in enumerate(batches):
            for row, index in enumerate(batch.index):
                sampled_by = getattr(samples[index], "sampled_by", None)
                mask = batch.action_mask[row].bool()  # nothing of a rollout without a reward
                if batch.rollout_log_probs is None or sampled_by not in engines or not mask.any():
                    continue
                sides = (side[row][mask] for side in (batch.rollout_log_probs, now[number], base[number]))
                positions = mask.nonzero().flatten() + 1  # column t predicts token t + 1
                prompt = zlib.crc32(samples[index].prompts[0].encode())  # the same in each step
                # Each rank scored a run of consecutive micro-batches, which gives the rank.
                rollouts.append(Rollout(engines[sampled_by], number * ranks // len(batches), prompt, positions, *sides))
        return rollouts

    def _routing_as_cause(self, batches: Sequence[Batch], samples: Sequence[Sample], comparison: Comparison) -> str:
        """Return whether the engines' choice of experts explains a difference on these micro-batches: replay it."""
        limit = self._args.parity_limit
        if self._args.routing_replay:
            return "the engines' choice of experts was replayed, so it is not the cause"
        routings = [[getattr(samples[index], "engine_routing", None) for index in batch.index] for batch in batches]
        if any(routing is None for of_batch in routings for routing in of_batch):
            return "the engines' choice of experts was not recorded, so it may be the cause"
        if not any(comparison.problems(limit)):
            return "this step has too few tokens to say whether the choice of experts is the cause"
        replayed = compare(self._score(batches, samples, list_inputs(batches) | {"routing": routings}))
        left = next(replayed.problems(limit), None)
        if left is None:
            mean = replayed.rows[0].mean
            return (
                f"it is the choice of experts: with the engines' replayed, the mean is {mean} nat; set --routing_replay"
            )
        return f"it is not the choice of experts: with the engines' replayed, {left.what}"


def choose(args: Arguments, batches: Sequence[Batch]) -> list[Batch]:
    """Return about ROWS rows of the micro-batches, evenly spaced, and as many on each rank."""
    ranks = args.actor_num_nodes * args.actor_num_gpus_per_node
    per_batch = len(batches[0].prompts)
    count = max(ranks, min(len(batches), -(-ROWS // per_batch)) // ranks * ranks)  # forward passes are collective
    return [batches[number * len(batches) // count] for number in range(count)]
