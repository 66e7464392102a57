"""Held-out evaluation during training: exact match of the final answer, or the score of a reward of the user's own.

Records, metrics and intervals are the same as in `python -m eval.evaluate`; the reward function gives the grade.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grpo.rollout import greedy
from grpo.rollout.multi_turn.settings import environments_by_prompt
from grpo.rollout.response_text import generated
from grpo.rollout.seeds import begin_stage, seed_of
from grpo.rollout.trajectory import response_tokens
from grpo.run import measure
from grpo.run.measure import SCORE
from grpo.run.problem_ids import by_prompt
from grpo.run.records import Record, read_answer, summarise, summarise_by_source
from grpo.run.run_log import LoggedTrainer
from grpo.run.sample_records import gold, numbers
from grpo.stack.upstream.experience import Sample
from grpo.stack.upstream.tokenizer import Tokenizer

logger = logging.getLogger("openrlhf.grpo.evaluation")


def evaluate(trainer: LoggedTrainer, step: int, generate_kwargs: dict[str, Any]) -> None:
    """Evaluate the engines' policy on the held-out set, and log the result. Replaces ``PPOTrainer.evaluate``."""
    started = time.monotonic()
    number, extra = generate_kwargs["n_samples_per_prompt"], greedy.answers(generate_kwargs["temperature"])
    trainer.run_log.note_phase("evaluate", step)
    begin_stage(trainer.samples_generator, f"eval {step}", greedy_sample=number if extra else None)
    # The loader draws from torch's generator. An evaluation must not change the training that follows.
    with torch.random.fork_rng(devices=[]):
        problems = problems_by_prompt(trainer)
        drawn = trainer.samples_generator.generate_eval_samples(
            **generate_kwargs | {"n_samples_per_prompt": number + extra}
        )
    seeds, is_score = partial(seed_of, trainer.samples_generator), measure.of_run(trainer.args) == SCORE
    # The samples of a prompt lie next to each other, the greedy one last.
    samples = [sample for place, sample in enumerate(drawn) if place % (number + extra) < number]
    records = describe(samples, trainer.tokenizer, problems, seeds, is_score)
    result = summarise_by_source(records, sorted({1, number}))
    if extra:
        likeliest = describe(drawn[number :: number + 1], trainer.tokenizer, problems, seeds, is_score)
        trainer.run_log.write_samples(f"greedy_{step}", likeliest)
        result["greedy"] = summarise(likeliest)
    result["seconds"] = time.monotonic() - started

    trainer.run_log.write_samples(f"eval_{step}", records)  # first, because the eval line marks the evaluation as done
    trainer.run_log.write_eval(step, result)
    if result["ungraded"]:
        logger.error(
            "%d of %d evaluation samples could not be graded; %d of %d problems were",
            *(result["ungraded"], len(samples), result["n"], result["problems"]),
        )
    logger.info("held-out evaluation at step %d: %s", step, result)


def problems_by_prompt(trainer: LoggedTrainer) -> dict[str, dict[str, str]]:
    """Return ``id`` and ``datasource`` of each held-out problem, by the prompt that the engines get.

    The loader keeps the order of the data file.
    """
    assert trainer.args.eval_dataset and trainer.eval_dataloader is not None
    rows = [row for batch in trainer.eval_dataloader for row in zip(*batch, strict=True)]
    return by_prompt(
        Path(trainer.args.eval_dataset),
        [(source, prompt) for source, prompt, _ in rows],
        environments_by_prompt(trainer.args),
    )


def describe(
    samples: Sequence[Sample],
    tokenizer: Tokenizer,
    problems: dict[str, dict[str, str]],
    seed_of: Callable[[str], int],
    is_score: bool = False,
) -> list[Record]:
    """Return the record of each sample (:mod:`grpo.run.records`), with its prompt and all logs of the reward function.

    Args:
        samples: ``Experience`` of one sample each. Correctness is ``info["correct"]`` if the reward function reports
            it, otherwise the score.
        problems: by prompt, see :func:`problems_by_prompt`.
        seed_of: returns the seed of a prompt's first sample.
        is_score: whether the score is measured, and not correctness.
    """
    drawn: Counter[str] = Counter()
    records = []
    for sample in samples:
        prompt, logs = sample.prompts[0], numbers(sample)
        problem, seed = problems[prompt], seed_of(prompt) + drawn[prompt]
        text = generated(tokenizer, response_tokens(sample), bool(logs["truncated"]))
        about = {**problem, "sample": drawn[prompt], "label": gold(sample.labels[0]), "seed": seed, "prompt": prompt}
        score = math.nan if sample.scores is None else float(sample.scores[0])
        grade = {"measure": SCORE, "score": score} if is_score else {"correct": score}
        grade = {**read_answer(about | text), **grade, **logs}
        grade["answer_length"] = text["answer_length"]  # an executor logs NaN here if there is no answer
        records.append({**about, **text, **grade})
        drawn[prompt] += 1
    return records


def run_first(trainer: LoggedTrainer, step: int) -> None:
    """Evaluate before the first step if ``--eval_at_start`` asks for it.

    After a resume, also run the evaluation that the previous part was killed before.
    """
    if trainer.args.eval_at_start if step == 0 else step % trainer.args.eval_steps == 0:
        run(trainer, step)


def run_last(trainer: LoggedTrainer, step: int) -> None:
    """Evaluate after the last step, unless evaluations are off (``--eval_steps -1``, which OpenRLHF makes infinite)."""
    if math.isfinite(trainer.args.eval_steps):
        run(trainer, step)


def run(trainer: LoggedTrainer, step: int) -> None:
    """Evaluate with the evaluation's own temperature and samples per prompt, unless this step has been evaluated."""
    if trainer.eval_dataloader is None or trainer.run_log.is_evaluated(step):
        return
    args = trainer.args
    kwargs = {
        **trainer.generate_kwargs,
        "temperature": args.eval_temperature,
        "n_samples_per_prompt": args.eval_n_samples_per_prompt,
    }
    evaluate(trainer, step, kwargs)
