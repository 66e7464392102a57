"""Held-out evaluation during training: exact match of the final answer, or the score of a reward of the user's own.

Records, metrics and intervals are the same as in `python -m eval.evaluate`; the reward function gives the grade.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from grpo.environments.settings import environments_by_prompt, has_environment
from grpo.rollout.response_text import make_record_fields
from grpo.rollout.rows import Sample
from grpo.rollout.stage import Stage, count_greedy
from grpo.rollout.trajectory import response_tokens
from grpo.run import eval_metric
from grpo.run.eval_metric import SCORE
from grpo.run.records import Record, index_by_prompt, read_answer, summarize, summarize_by_source
from grpo.run.run_log import RunLog
from grpo.run.sample_records import gold, list_token_ids, numbers
from grpo.stack.upstream import Arguments, PromptLoader, Tokenizer

logger = logging.getLogger("openrlhf.grpo.evaluation")


class Evaluation:
    """Evaluates the policy of the engines on the held-out set.

    Args:
        held_out: the loader of the held-out problems; None without any, and nothing is evaluated.
        sample: samples every problem this many times in a stage.
    """

    def __init__(
        self,
        args: Arguments,
        tokenizer: Tokenizer,
        held_out: PromptLoader | None,
        sample: Callable[[Stage, int], list[Sample]],
        log: RunLog,
    ) -> None:
        self._args, self._tokenizer, self._held_out = args, tokenizer, held_out
        self._sample, self._log = sample, log

    def run_first(self, step: int) -> None:
        """Evaluate before the first step if ``--eval_at_start`` asks for it.

        After a resume, also run the evaluation that the previous attempt was killed before.
        """
        if self._args.eval_at_start if step == 0 else step % self._args.eval_steps == 0:
            self.run(step)

    def run_last(self, step: int) -> None:
        """Evaluate after the last step, unless evaluations are off (an infinite ``eval_steps``)."""
        if math.isfinite(self._args.eval_steps):
            self.run(step)

    def run(self, step: int) -> None:
        """Evaluate, and log the result, unless this step has been evaluated."""
        if self._held_out is None or self._log.is_evaluated(step):
            return
        started = time.monotonic()
        number, extra = self._args.eval_n_samples_per_prompt, count_greedy(self._args.eval_temperature)
        self._log.note_phase("evaluate", step)  # without phase(): its seconds belong to no training step
        stage = Stage(self._args, f"eval {step}", greedy_sample=number if extra else None)
        # The loader draws from torch's generator. An evaluation must not change the training that follows.
        with torch.random.fork_rng(devices=[]):
            problems = self._problems()
            drawn = self._sample(stage, number + extra)
        is_score = eval_metric.choose_eval_metric(self._args) == SCORE
        # The samples of a prompt lie next to each other, the greedy one last.
        samples = [sample for place, sample in enumerate(drawn) if place % (number + extra) < number]
        records, likeliest = (
            describe(part, self._tokenizer, problems, stage.get_seed, is_score)
            for part in (samples, drawn[number :: number + 1] if extra else [])
        )
        result = summarize_by_source(records, sorted({1, number}))
        if extra:
            self._log.write_samples(f"greedy_{step}", likeliest)
            result["greedy"] = summarize(likeliest)
        if has_environment(self._args):
            result["in_environment"] = True
        result["seconds"] = time.monotonic() - started

        self._log.write_samples(f"eval_{step}", records)  # first: the eval line marks the evaluation as done
        self._log.write_eval(step, result)
        if result["ungraded"]:
            logger.error(
                "%d of %d evaluation samples could not be graded; %d of %d problems were",
                *(result["ungraded"], len(samples), result["n"], result["problems"]),
            )
        logger.info("held-out evaluation at step %d: %s", step, result)

    def _problems(self) -> dict[str, dict[str, str]]:
        """Return ``id`` and ``datasource`` of each held-out problem, by the prompt that the engines get."""
        assert self._args.eval_dataset and self._held_out is not None
        rows = [row for batch in self._held_out for row in zip(*batch, strict=True)]  # in the order of the data file
        return index_by_prompt(
            Path(self._args.eval_dataset),
            [(source, prompt) for source, prompt, *_ in rows],
            environments_by_prompt(self._args),
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
        samples: rollouts. Correctness is ``info["correct"]`` if the reward function reports
            it, otherwise the score.
        problems: ``id`` and ``datasource`` by prompt.
        seed_of: returns the seed of a prompt's first sample.
        is_score: whether the score is measured, and not correctness.
    """
    drawn: Counter[str] = Counter()
    records = []
    for sample in samples:
        prompt, logs = sample.prompts[0], numbers(sample)
        problem, seed = problems[prompt], seed_of(prompt) + drawn[prompt]
        text = make_record_fields(tokenizer, response_tokens(sample), bool(logs["truncated"]))
        about = {**problem, "sample": drawn[prompt], "label": gold(sample.labels[0]), "seed": seed, "prompt": prompt}
        about["token_ids"] = list_token_ids(sample)
        score = math.nan if sample.scores is None else float(sample.scores[0])
        grade = {"measure": SCORE, "score": score} if is_score else {"correct": score}
        grade = {**read_answer(about | text), **grade, **logs}
        grade["answer_length"] = text["answer_length"]  # an executor logs NaN here if there is no answer
        records.append({**about, **text, **grade})
        drawn[prompt] += 1
    return records
