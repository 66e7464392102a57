"""Held-out evaluation during training: exact match of the final answer, with an interval."""

import logging
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from grpo.rollout import begin_stage
from grpo.run_log import describe_samples

logger = logging.getLogger("openrlhf.grpo.evaluation")
Z = 1.959964  # two-sided 95% of the normal distribution


def interval(problem_means: Sequence[float]) -> tuple[float, float]:
    """Return a 95% interval of the mean over problems.

    Wilson's interval with the effective number of independent samples: samples of one problem are not independent, so
    the variance is taken between the problems' means. It stays inside 0..1 and does not collapse where all problems
    agree, as a normal interval does.

    Args:
        problem_means: for each problem, the share of its samples that are correct.

    Raises:
        ValueError: without problems.
    """
    n = len(problem_means)
    if n == 0:
        raise ValueError("an interval needs at least one problem")
    p = statistics.fmean(problem_means)
    between = statistics.variance(problem_means) / n if n > 1 else 0.0
    size = p * (1 - p) / between if between > 0 and 0 < p < 1 else n
    centre = (p + Z**2 / (2 * size)) / (1 + Z**2 / size)
    half = Z / (1 + Z**2 / size) * math.sqrt(p * (1 - p) / size + Z**2 / (4 * size**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def summarise(samples: Sequence[Any], group_size: int) -> dict[str, Any]:
    """Return the metrics of an evaluation.

    - ``exact_match`` (pass@1), ``ci_low``, ``ci_high``: over all problems, 95%.
    - ``pass_at_k`` with ``k``: share of problems with a correct sample among the k drawn.
    - ``n``: problems; ``samples``: samples; ``ungraded``: samples that the reward function could not grade, which
      count neither as right nor as wrong (where none is graded, the rates are None).
    - ``truncated``, ``response_length``: means over samples.

    Args:
        samples: ``Experience`` of one sample each, the samples of a problem next to each other. Correctness is
            ``info["correct"]`` where the reward function reports it, else the score.
        group_size: samples a problem.
    """
    correct = [float(sample.info.get("correct", sample.scores)[0]) for sample in samples]
    drawn = [correct[start : start + group_size] for start in range(0, len(correct), group_size)]
    graded = [[value for value in group if math.isfinite(value)] for group in drawn]
    groups = [group for group in graded if group]
    means = [statistics.fmean(group) for group in groups]
    low, high = interval(means) if means else (None, None)
    return {
        "exact_match": statistics.fmean(means) if means else None,
        "ci_low": low,
        "ci_high": high,
        "pass_at_k": statistics.fmean(max(group) for group in groups) if means else None,
        "k": group_size,
        "n": len(groups),
        "samples": len(samples),
        "ungraded": len(samples) - sum(map(len, groups)),
        "truncated": statistics.fmean(float(sample.info["truncated"][0]) for sample in samples),
        "response_length": statistics.fmean(float(sample.info["response_length"][0]) for sample in samples),
    }


def evaluate(trainer: Any, step: int, generate_kwargs: dict[str, Any]) -> None:
    """Evaluate the engines' policy on the held-out set, and log the result. Replaces ``PPOTrainer.evaluate``."""
    started = time.monotonic()
    begin_stage(trainer.samples_generator, f"eval {step}")
    # The loader draws from torch's generator; training after an evaluation is to be that without one.
    with torch.random.fork_rng(devices=[]):
        batches = [zip(*batch, strict=True) for batch in trainer.eval_dataloader]
        sources = {prompt: source for batch in batches for source, prompt, _ in batch}
        samples = trainer.samples_generator.generate_eval_samples(**generate_kwargs)
    group_size = generate_kwargs["n_samples_per_prompt"]
    result = summarise(samples, group_size)
    by_source = defaultdict(list)
    for sample in samples:
        by_source[sources[sample.prompts[0]]].append(sample)
    result["by_source"] = {source: summarise(part, group_size) for source, part in by_source.items()}
    result["seconds"] = time.monotonic() - started

    trainer.run_log.write_eval(step, result)
    trainer.run_log.write_samples(f"eval_{step}", describe_samples(samples, trainer.tokenizer))
    logs = {f"eval_{source}_pass1": part["exact_match"] for source, part in result["by_source"].items()}
    logs |= {f"eval_{source}_pass{group_size}": part["pass_at_k"] for source, part in result["by_source"].items()}
    for tracker in (trainer.wandb_logger, trainer.tensorboard_logger):
        if tracker:
            tracker.log_eval(step, {name: value for name, value in logs.items() if value is not None})
    if result["ungraded"]:
        logger.error("%d of %d evaluation samples could not be graded", result["ungraded"], len(samples))
    logger.info("held-out evaluation at step %d: %s", step, result)


def run_first(trainer: Any, step: int) -> None:
    """Evaluate before the first step, where ``--eval_at_start`` asks for it.

    A resumed run evaluates here what the run before it was killed too early for.
    """
    if trainer.args.eval_at_start if step == 0 else step % trainer.args.eval_steps == 0:
        run(trainer, step)


def run_last(trainer: Any, step: int) -> None:
    """Evaluate after the last step, unless evaluations are off (``--eval_steps -1``, which OpenRLHF makes infinite)."""
    if math.isfinite(trainer.args.eval_steps):
        run(trainer, step)


def run(trainer: Any, step: int) -> None:
    """Evaluate with the evaluation's own temperature and samples a prompt, unless this step has been evaluated."""
    if trainer.eval_dataloader is None or trainer.run_log.is_evaluated(step):
        return
    args = trainer.args
    kwargs = {
        **trainer.generate_kwargs,
        "temperature": args.eval_temperature,
        "n_samples_per_prompt": args.eval_n_samples_per_prompt,
    }
    evaluate(trainer, step, kwargs)
