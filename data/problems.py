"""Turns rows into problems, finds rows that are the same problem, and chooses and splits problems.

A row has a problem and an answer, in columns that the user names. A row of AIME also has its place: `year`, `contest` 1
or 2, `number` from 1 to 15. A paper with a number 0 counts from 0. A row of MATH has its `level` and `subject`.

No rule draws at random or depends on the row order:

- AIME: each paper gives three of its 15 problems to eval, one of each third (easy, middle, hard). With
  k = (2 * year + contest) mod 5 these are 1 + k, 6 + (k + 3) mod 5, and 11 + (k + 1) mod 5. Thus five consecutive
  papers hold out every number once. Six papers give 72 and 18. A problem's split depends only on its place in the
  contest: a file with more years does not move it.
- Everything else: `choose_balanced` picks the share for eval (20% unless --eval-fraction says otherwise).
- MATH: problems of level 4 and 5 (or --levels), of which `choose_balanced` picks 45 unless --math-count says otherwise.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from data.sources import Row, read_answer
from grpo.rollout.problem_files import normalize
from grpo.stack.problem import UserError
from reward.answers import canonical

Paper = tuple[int, int, int]  # of AIME: year, contest 1 or 2, number 1 to 15
DEFAULT_EVAL_FRACTION = 0.2
MATH_COUNT, MATH_LEVELS = 45, (4, 5)
ANY_LEVEL = range(6)
_MISSING = object()
_GENERAL = "\n\nSolve the problem. Put the final answer in \\boxed{}."  # the tiny model has learned to obey it
# The text after the problem in the prompt, by data source.
INSTRUCTIONS = {
    "aime": "\n\nSolve the problem. The answer is an integer from 0 to 999; put it in \\boxed{}.",
    "math": _GENERAL,
    "synthetic": _GENERAL,
}


class Form(NamedTuple):
    """How a row says its problem and its answer.

    problem, answer: its columns; a dot leads into a nested column.
    after: what precedes the answer in its column.
    is_graded: the grader compares answers with `answer`; else a reward of the user's own reads it, in any form.
    """

    problem: str = "problem"
    answer: str = "answer"
    after: str | None = None
    is_graded: bool = True


@dataclass(frozen=True)
class Problem:
    """One checked problem.

    split:   "train" or "eval"; None until a rule decides.
    paper:   the place of a problem of AIME, else None.
    datasource: "aime", "math" (with a level), "synthetic", or the name of its file.
    level:   1 to 5 for MATH, 0 if the row has another word for it, None without a level.
    location: the row in its source, for messages.
    is_graded: see :class:`Form`.
    """

    text: str
    answer: str
    datasource: str
    split: str | None = None
    paper: Paper | None = None
    level: int | None = None
    subject: str | None = None
    location: str = ""
    is_graded: bool = True

    @property
    def digest(self) -> str:
        """Return a digest that ignores white space."""
        return hashlib.sha256(" ".join(self.text.split()).encode()).hexdigest()

    @property
    def id(self) -> str:
        """Return an id stable over files, runs and machines: the place in the contest, or a hash of the text."""
        kind = self.datasource if self.datasource in INSTRUCTIONS else "problem"  # files may be renamed
        return "aime-{}-{}-{}".format(*self.paper) if self.paper else f"{kind}-{self.digest[:16]}"

    @property
    def keys(self) -> tuple[str, str]:
        """Return what the same problem shares: its text, whatever its case, or its contest place."""
        return normalize(self.text), self.id

    @property
    def record(self) -> dict[str, str]:
        """Return the line of a prepared file. Only our own reward reads a split, so another gets the bare answer."""
        prompt, label = self.text, self.answer
        if self.is_graded:
            prompt = add_instruction(self.text, self.datasource)
            label = json.dumps({"answer": self.answer, "split": self.split}, ensure_ascii=False)
        return {"prompt": prompt, "label": label, "datasource": self.datasource, "id": self.id}


def add_instruction(text: str, datasource: str) -> str:
    """Return the user's message: the problem, and how to answer. Other data sources get the general instruction."""
    return text + INSTRUCTIONS.get(datasource, _GENERAL)


def strip_instruction(prompt: str) -> str:
    """Return the problem of a prompt, without white space at its ends: the reverse of :func:`add_instruction`."""
    for instruction in INSTRUCTIONS.values():
        prompt = prompt.strip().removesuffix(instruction.strip())
    return prompt.strip()


def parse_rows(
    rows: Sequence[Row], source: str, split: str | None, form: Form | None = None
) -> tuple[list[Problem], list[str]]:
    """Return the problems of a source's good rows, and one line per bad row: unreadable, incomplete, not gradable.

    Raises UserError if no row has one of the columns.
    """
    form = form or Form()
    objects = [row.value for row in rows if isinstance(row.value, dict)]
    for option, column in (("problem", form.problem), ("answer", form.answer)):
        if objects and all(_read(value, column) is _MISSING for value in objects):
            names = dict.fromkeys(name for value in objects for name in _list_columns(value))
            what = f"{source} has no column {column!r} (columns: {', '.join(names)})"
            raise UserError(what, f"name the one with the {option} with --{option}-column")
    places = [_place(row.value) for row in rows]
    from_zero = {place[:2] for place in places if place and place[2] == 0}
    problems, bad = [], []
    for (location, value), place in zip(rows, places, strict=True):
        paper = place and (*place[:2], place[2] + (place[:2] in from_zero))
        try:
            problems.append(_parse(value, form, paper, source, split, location))
        except ValueError as error:
            bad.append(f"{location}: {error}")
    return problems, bad


def merge_repeats(problems: Sequence[Problem]) -> tuple[list[Problem], list[str], list[str]]:
    """Keep one of the problems that have the same text or contest place and are meant for the same split.

    Returns the problems kept, in a fixed order, and a line for each repetition left out. Also returns a line for each
    problem whose repetitions have another answer; none of these is kept.
    """
    repeats: list[str] = []
    bad: list[str] = []
    kept = sorted(problems, key=_order)
    for key in (0, 1):
        groups = defaultdict(list)
        for problem in kept:
            groups[problem.split, problem.keys[key]].append(problem)
        kept = []
        for first, *others in groups.values():
            places = [other.location for other in others]
            if len({canonical(one.answer) if one.is_graded else one.answer for one in (first, *others)}) > 1:
                bad.append(f"{first.location}: the same problem with another answer is at {', '.join(places)}")
            else:
                kept.append(first)
                repeats += [f"{place}: repeats {first.location}" for place in places]
    return kept, repeats, bad


def leave_out_held_out(problems: Sequence[Problem]) -> tuple[list[Problem], list[str]]:
    """Return the problems without those of train that are also in eval, and a line for each of these."""
    held_out = {key: one for one in problems if one.split == "eval" for key in one.keys}
    kept, lines = [], []
    for one in problems:
        same = [held_out[key] for key in one.keys if key in held_out and one.split == "train"]
        if same:
            lines.append(f"{one.location}: is the same as {same[0].location}")
        else:
            kept.append(one)
    return kept, lines


def _order(problem: Problem) -> tuple:
    """Return a sort key of kind, data source and place or digest, never of the row, so that a source may be shuffled.

    Problems with a contest place or a level come first: they are the repetition to keep.
    """
    content = problem.text, problem.answer, problem.level or 0, problem.subject or ""
    kind = problem.paper is None, problem.level is None, problem.datasource
    return *kind, problem.paper or (), problem.digest, *content, problem.location


def _parse(row: Any, form: Form, paper: Paper | None, source: str, split: str | None, location: str) -> Problem:
    """Return a checked problem. Raises ValueError with the fault."""
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, dict):
        raise ValueError("is not an object with columns")
    match _read(row, form.problem):
        case (str() as text) | [{"role": "user", "content": str() as text}] if text.strip():
            text = strip_instruction(text) if form.is_graded else text
        case _:
            raise ValueError(f"has in its column {form.problem!r} neither a text nor one message of the user")
    answer = read_answer(_read(row, form.answer, None), form.answer, form.after, form.is_graded)
    level = _level(row.get("level"))
    datasource = "aime" if paper else "math" if level is not None else _name_datasource(source)
    subject = str(row.get("subject") or "") or None
    return Problem(text, answer, datasource, split, paper, level, subject, location, form.is_graded)


def _read(row: Mapping[str, Any], column: str, default: Any = _MISSING) -> Any:
    """Return the value of a column: of this name, or of what follows the dot in the column before it."""
    if column in row:
        return row[column]
    outer, _, inner = column.partition(".")
    value = row.get(outer)
    return _read(value, inner, default) if inner and isinstance(value, dict) else default


def _list_columns(row: Mapping[str, Any]) -> Iterator[str]:
    for name, value in row.items():
        yield from (f"{name}.{inner}" for inner in _list_columns(value)) if isinstance(value, dict) else (name,)


def _name_datasource(source: str) -> str:
    """Return the data source of problems without contest place or level: their file's name, fit for a metric name."""
    name = re.sub(r"[^a-z0-9]+", "-", Path(source).stem.lower()).strip("-") or "own"
    return f"{name}-file" if name in INSTRUCTIONS else name


def _level(value: Any) -> int | None:
    if value in (None, ""):
        return None
    level = str(value).removeprefix("Level ")
    return int(level) if level in ("1", "2", "3", "4", "5") else 0


def _place(row: Any) -> Paper | None:
    """Return the place in a contest as the row has it; None for another row."""
    try:
        year, contest, number = int(row["year"]), int(row["contest"]), int(row["number"])
    except (KeyError, TypeError, ValueError):
        return None
    return (year, contest, number) if contest in (1, 2) and 0 <= number <= 15 else None


def is_in_aime_eval(year: int, contest: int, number: int) -> bool:
    """Say whether a problem is held out; the rule is in the module's docstring."""
    third, within = divmod(number - 1, 5)
    return within == (2 * year + contest + 3 * third) % 5


def choose_balanced(problems: Sequence[Problem], count: int) -> list[Problem]:
    """Return `count` problems, or all if there are fewer, in turns from each level and subject, lowest digest first."""
    cells: dict[tuple[int | None, str | None], list[Problem]] = defaultdict(list)
    for problem in sorted(problems, key=lambda one: (one.digest, one.id)):
        cells[problem.level, problem.subject].append(problem)
    turns = {one: turn for members in cells.values() for turn, one in enumerate(members)}
    return sorted(problems, key=lambda one: (turns[one], one.digest, one.id))[:count]


def choose_math(problems: Sequence[Problem], count: int, levels: Sequence[int]) -> tuple[list[Problem], dict[str, int]]:
    """Leave out problems with another level than `levels`, and take `count` of the rest.

    Problems without a level are kept. Returns the problems, and how many were left out, by reason.
    """
    without_level = [problem for problem in problems if problem.level is None]
    hard = [problem for problem in problems if problem.level in levels]
    chosen = choose_balanced(hard, count)
    left_out = {
        f"another level than --levels {' '.join(map(str, levels))}": len(problems) - len(without_level) - len(hard),
        f"beyond --math-count {count}": len(hard) - len(chosen),
    }
    return without_level + chosen, left_out


def assign_splits(problems: Sequence[Problem], eval_fraction: float | None) -> list[Problem]:
    """Return the problems with their split. With an eval_fraction, AIME is split like everything else."""
    by_place = [one for one in problems if one.paper and eval_fraction is None]
    others = [one for one in problems if not one.paper or eval_fraction is not None]
    count = round((DEFAULT_EVAL_FRACTION if eval_fraction is None else eval_fraction) * len(others))
    held_out = {one.id for one in by_place if one.paper and is_in_aime_eval(*one.paper)}
    held_out |= {one.id for one in choose_balanced(others, count)}
    return [replace(one, split="eval" if one.id in held_out else "train") for one in problems]
