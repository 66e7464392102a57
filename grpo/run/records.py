"""One record per sample, in samples.jsonl and grades.jsonl of an evaluation and samples/eval_N.jsonl of a run.

What was generated:
- `id`, `datasource`, `label`, `prompt`: of the problem; `sample`: number of the sample, from 0; `seed`: of its
  generation.
- `response`: the text with special tokens; `response_length`: its tokens. `answer_length`: the tokens after the header
  of the last final message, None without one. `truncated`: 1.0 if the token limit cut it.
- Under a thinking budget also what a run logs (`thinking_truncated`, `thinking_length`, ...; see docs/metrics.md). The
  response includes the forced delimiter, which no length counts. `truncated` refers to the answer.

What the grader says about it:
- `correct`: 1.0 or 0.0, or the score of a conversation; None if it could not be graded, which counts neither way.
- `answered`, `has_final`: 1.0 if there is an answer, a final message.
- `answer`, `reason`: the extracted answer, or why there is none.

A conversation's record has its `ending`, `messages`, `score`, `reward`, and the logs of the environment, which gave
them.

A run's records also have `token_ids`, as in samples/step_N.jsonl (:mod:`grpo.run.sample_records`), and the logs of the
reward function, from which their `correct` comes. With a reward of the user's own, `measure` is "score"
(:mod:`grpo.run.eval_metric`), and `score` counts instead of `correct`.
"""

import hashlib
import logging
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo.environments.settings import FIELD
from grpo.run.estimators import interval, pass_at_k, score_interval
from grpo.run.eval_metric import EXACT_MATCH, SCORE
from grpo.stack.json_files import numbered_rows
from reward.answers import NO_FINAL, Grade, grade
from reward.judge import extract_problem

logger = logging.getLogger(__name__)


Record = dict[str, Any]

_MEANS = ("truncated", "response_length", "answer_length")
CONTENT = ("prompt", "response", "messages", "conversation", "token_ids")  # of a sample, which its grade leaves out


def grade_sample(sample: Record) -> Record:
    """Return a sample's record with its grade, without its content."""
    record = {key: value for key, value in sample.items() if key not in CONTENT}
    if "ending" in sample:
        return record | {"correct": sample["score"]}
    result = _grade(sample, sample["label"])
    if isinstance(result, Exception):
        return record | {"correct": None, "answered": None, "has_final": None, "answer": None, "reason": repr(result)}
    return record | {
        "correct": float(result.correct),
        "answered": float(result.answer is not None),
        "has_final": float(result.reason != NO_FINAL),
        "answer": result.answer,
        "reason": result.reason,
    }


def read_answer(sample: Record) -> Record:
    """Return `answer` and `reason` of an already graded sample."""
    result = _grade(sample, "")  # nothing equals the empty label, and comparing needs no algebra
    if isinstance(result, Exception):
        return {"answer": None, "reason": repr(result)}
    return {"answer": result.answer, "reason": result.reason}


def _grade(sample: Record, gold: str) -> Grade | Exception:
    try:
        return grade(sample["response"], gold, extract_problem(sample.get("prompt") or ""))
    except Exception as error:  # a sample that crashes the grader must not take down the others or a run
        logger.error("sample %s of %s could not be graded: %r", sample["sample"], sample["id"], error)
        return error


def summarize(records: Sequence[Record], ks: Iterable[int] = ()) -> dict[str, Any]:
    """Return the metrics of an evaluation.

    - ``exact_match`` (pass@1) or ``score``, ``ci_low``, ``ci_high``: mean over problems, with its 95% interval.
    - ``pass_at_k``: for each k: ``value``, ``ci_low``, ``ci_high``, by the unbiased estimator; of exact match only.
    - ``n``: problems with a grade, ``problems``: all of them; ``samples``: samples; ``ungraded``: samples without a
      grade, which count neither as right nor as wrong. A problem without a grade, or with fewer than k, is left out. If
      no problem is left, the values are None.
    - ``truncated``, ``no_final``, ``no_answer``: shares of the samples. Under a thinking budget ``truncated`` refers to
      the answers, and ``thinking_truncated`` is added.
    - ``response_length``, ``thinking_length``, ``answer_length``: mean tokens; ``answer_length`` over samples with a
      final message. A response without one is all thinking.

    Args:
        records: graded, any number per problem.
        ks: the k of pass@k.
    """
    metric, by_problem = grades_by_problem(records)
    counts = [(len(grades), sum(grade >= 1 for grade in grades)) for grades in by_problem.values()]
    result: dict[str, Any] = dict.fromkeys((metric, "ci_low", "ci_high"))
    if counts:
        is_score = metric == SCORE
        rates = [statistics.fmean(g) for g in by_problem.values()] if is_score else [right / n for n, right in counts]
        draws = len(rates) / sum(1 / n for n, _ in counts)
        low, high = score_interval(list(by_problem.values())) if is_score else interval(rates, draws)
        result = {metric: statistics.fmean(rates), "ci_low": low, "ci_high": high}
    means = {
        name: _mean(record.get(name) for record in records)
        for name in (*_MEANS, "has_final", "answered", "thinking_truncated")
    }
    if means["thinking_truncated"] is not None:
        result["thinking_truncated"] = means["thinking_truncated"]
    return result | {
        "pass_at_k": {str(k): _pass_at(counts, k) for k in ks if metric == EXACT_MATCH},
        "n": len(counts),
        "problems": len({record["id"] for record in records}),
        "samples": len(records),
        "ungraded": len(records) - sum(n for n, _ in counts),
        "no_final": _complement(means["has_final"]),
        "no_answer": _complement(means["answered"]),
        "thinking_length": _mean(_thinking_length(record) for record in records),
        **{name: means[name] for name in _MEANS},
    }


def summarize_by_source(records: Sequence[Record], ks: Sequence[int]) -> dict[str, Any]:
    """Return :func:`summarize` of all records, and of each data source under ``by_source``.

    Records of several environments name theirs; then it is also of each environment, under ``by_environment``.
    """
    parts: dict[str, dict[str, list[Record]]] = {"by_source": {}, "by_environment": {}}
    for record in records:
        parts["by_source"].setdefault(record["datasource"], []).append(record)
        if FIELD in record:
            parts["by_environment"].setdefault(record[FIELD], []).append(record)
    summaries = {key: {name: summarize(part, ks) for name, part in by.items()} for key, by in parts.items() if by}
    return summarize(records, ks) | summaries


def average_conversations(records: Sequence[Record]) -> dict[str, float]:
    """Return the mean of each number of conversations, over those that have it; {} for single answers."""
    about = ("id", "sample", "seed", "correct", "response_length", "truncated")
    records = [record for record in records if "ending" in record]
    names = dict.fromkeys(key for record in records for key, value in record.items() if _is_number(value))
    means = {name: _mean(record.get(name) for record in records) for name in names if name not in about}
    return {name: mean for name, mean in means.items() if mean is not None}


def _thinking_length(record: Record) -> float | None:
    """Return the tokens before the final message plus its header; all tokens without one; None if unknown."""
    is_known = record.get("response_length") is not None and "answer_length" in record
    return record["response_length"] - (record["answer_length"] or 0) if is_known else None


def grades_by_problem(records: Sequence[Record]) -> tuple[str, dict[str, list[float]]]:
    """Return the metric of the records, and the grades of each problem's graded samples by its id.

    Grades are 1.0 or 0.0, or the scores of a reward of the user's own.
    """
    is_score = any(record.get("measure") == SCORE for record in records)
    groups = defaultdict(list)
    for record in records:
        grade = record.get("score" if is_score else "correct")
        if _is_number(grade):
            groups[record["id"]].append(grade)
    return SCORE if is_score else EXACT_MATCH, dict(groups)


def _pass_at(counts: Sequence[tuple[int, int]], k: int) -> dict[str, float | None]:
    counts = [(n, correct) for n, correct in counts if n >= k]
    if not counts:
        return {"value": None, "ci_low": None, "ci_high": None}
    values = [pass_at_k(n, correct, k) for n, correct in counts]
    low, high = interval(values, len(values) / sum(k / n for n, _ in counts))
    return {"value": statistics.fmean(values), "ci_low": low, "ci_high": high}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _mean(values: Iterable[Any]) -> float | None:
    numbers = [value for value in values if _is_number(value)]
    return statistics.fmean(numbers) if numbers else None


def _complement(share: float | None) -> float | None:
    return None if share is None else 1 - share


def index_by_prompt(
    file: Path, rows: Iterable[tuple[str, str]], environments: Mapping[str, str] | None = None
) -> dict[str, dict[str, str]]:
    """Return ``id`` and ``datasource`` of each problem of a data file, by the prompt that the engines get.

    Args:
        rows: data source and prompt of each line, in the order of the file; the last ones may be missing.
        environments: by prompt, in a run with several of them; a problem then has its ``environment``, too.
    """
    named = {prompt: {FIELD: name} for prompt, name in (environments or {}).items()}
    ids = [row.get("id") for _, row in numbered_rows(file)]
    problems = {}
    for (source, prompt), id in zip(rows, ids, strict=False):  # --max_samples may leave out the last ones
        id = id or name_problem(prompt)
        problems[prompt] = {"id": id, "datasource": source, **named.get(prompt, {})}
    return problems


def name_problem(prompt: str) -> str:
    """Return the id of a problem whose line of the data file has none."""
    return f"prompt-{hashlib.sha256(prompt.encode()).hexdigest()[:16]}"
