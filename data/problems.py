r"""Validates rows and turns them into problems; finds rows that are the same problem.

A row has a problem and an answer. A row of AIME also has its place: year, contest I or II, number from 1 to 15. A row
of MATH has its level and subject. :mod:`data.columns` has the names of the columns. A problem may be a prompt that
`data.prepare` has written, and an answer its label. Without an answer the last box of the solution counts. Without
place columns, the place is read from a link to the problem's page or from an id such as 2024-II-4. A part of a place
means nothing, unless other rows of the file have a whole one. Papers count from 1; a paper with a number 0 counts from
0 and is shifted.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from data.columns import rename_columns
from data.instructions import INSTRUCTIONS, add_instruction, strip_instruction
from data.sources import Row
from grpo.rollout.problem_files import normalize
from reward.answers import canonical, grade
from reward.comparison import is_readable
from reward.extraction import extract_boxed
from reward.labels import parse_label
from reward.notation import MAX_ANSWER_CHARS, spell

PROBLEMS_PER_PAPER = 15
_CONTESTS = {"1": 1, "2": 2, "I": 1, "II": 2}
_PAGE = re.compile(r"(?P<year>\d{4})_AIME_(?P<contest>II?)_Problems/Problem_(?P<number>\d+)\Z")
_PLACE_ID = re.compile(r"(?P<year>\d{4})-(?P<contest>II?)-(?P<number>\d+)\Z")
_PLACE = ("year", "contest", "number")
# Placeholders for a missing answer. The grader would read these, and words of up to three letters, as products.
_MISSING = re.compile(r"n ?/ ?a\.?|n\. ?a\.?|(?:np\.)?nan\.?|nil|null|tb[ad]|<na>")
_WRAPPED = re.compile(r"\$(.+)\$|\\(?:text|mathrm) ?\{([^{}]+)\}")
_WORDS = {"yes", "no", "one", "two", "six", "ten", "inf", "dne", "see", "all", "any"}
_EXACT = 2**53  # up to here a float is the integer that was written
_LEVEL = re.compile(r"(?:level\s*)?([1-5])\Z", re.IGNORECASE)


@dataclass(frozen=True)
class Problem:
    """One checked problem.

    split:   "train" or "eval"; None until a rule decides.
    paper:   (year, contest 1 or 2, number 1 to 15) for AIME, else None.
    datasource: "aime", "math" (with a level), "synthetic", or the name of its file.
    level:   1 to 5 for MATH, 0 if the row has another word for it, None without a level.
    source:  the name of the file or hub set; `location` is the row in it, for messages.
    is_graded: the grader compares answers with `answer`; else a reward of the user's own reads it, in any form.
    """

    text: str
    answer: str
    datasource: str
    split: str | None = None
    paper: tuple[int, int, int] | None = None
    level: int | None = None
    subject: str | None = None
    source: str = ""
    location: str = ""
    is_graded: bool = True

    @property
    def digest(self) -> str:
        """Return a digest that ignores white space."""
        return hashlib.sha256(" ".join(self.text.split()).encode()).hexdigest()

    @property
    def normalized(self) -> str:
        """Return the text that repetitions of the problem share; the digest stays as it is, for ids and splits."""
        return normalize(self.text)

    @property
    def id(self) -> str:
        """Return an id stable over files, runs and machines: the place in the contest, or a hash of the text."""
        kind = self.datasource if self.datasource in INSTRUCTIONS else "problem"  # files may be renamed
        return "aime-{}-{}-{}".format(*self.paper) if self.paper else f"{kind}-{self.digest[:16]}"

    @property
    def prompt(self) -> str:
        """Return the user's message: the problem, and if it is graded how to answer."""
        return add_instruction(self.text, self.datasource) if self.is_graded else self.text

    @property
    def canonical_answer(self) -> str:
        """Return the answer in the spelling that equal answers share."""
        return canonical(self.answer) if self.is_graded else self.answer


def parse_rows(
    rows: Sequence[Row],
    source: str,
    split: str | None,
    own: Mapping[str, str] = MappingProxyType({}),
    is_graded: bool = True,
) -> tuple[list[Problem], list[str]]:
    """Return the problems of a source's good rows, and one line per bad row: unreadable, incomplete, not gradable.

    Args:
        own: the user's names of columns, see :func:`data.columns.rename_columns`.
        is_graded: see :class:`Problem`; if not, problems and answers stay as they are.

    Raises:
        UserError: if no row has a problem, or none an answer.
    """
    renamed = rename_columns(rows, source, own)
    places = [place for _, value in renamed if (place := _place(value))]
    from_zero = {_paper_key(place) for place in places if str(place.get("number")).strip() == "0"}
    is_contest = any(len(place) == len(_PLACE) for place in places)
    problems, bad = [], []
    for location, value in renamed:
        try:
            problem = _parse(value, from_zero, is_contest, split, source, location, is_graded)
            problems.append(problem)
        except ValueError as error:
            bad.append(f"{location}: {error}")
    return problems, bad


def merge_repeats(problems: Sequence[Problem]) -> tuple[list[Problem], list[str], list[str]]:
    """Keep one of the problems that have the same text or contest place and are meant for the same split.

    Returns the problems kept, in a fixed order, and a line for each repetition left out. Also returns a line for each
    problem whose repetitions contradict it; none of these is kept.
    """
    repeats: list[str] = []
    bad: list[str] = []
    kept = sorted(problems, key=_order)
    keys: tuple[Callable[[Problem], Hashable], ...] = (lambda one: one.normalized, lambda one: one.id)
    for key in keys:
        groups = defaultdict(list)
        for problem in kept:
            groups[problem.split, key(problem)].append(problem)
        kept = []
        for first, *others in groups.values():
            if any(other.canonical_answer != first.canonical_answer for other in others):
                bad += [
                    f"{first.location}: the same problem with another answer is at {other.location}" for other in others
                ]
            elif any(other.paper and other.paper != first.paper for other in others):
                bad += [
                    f"{first.location}: the same problem is at another contest place at {o.location}" for o in others
                ]
            else:
                kept.append(first)
                repeats += [f"{other.location}: repeats {first.location}" for other in others]
    return kept, repeats, bad


def _order(problem: Problem) -> tuple:
    """Return a sort key of kind, data source and place or digest, never of the row, so that a source may be shuffled.

    Problems with a contest place or a level come first: they are the repetition to keep.
    """
    content = problem.text, problem.answer, problem.level or 0, problem.subject or ""
    kind = problem.paper is None, problem.level is None, problem.datasource
    return *kind, problem.paper or (), problem.digest, *content, problem.source, problem.location


def _parse(
    row: Any,
    from_zero: set[tuple[str, str]],
    is_contest: bool,
    split: str | None,
    source: str,
    location: str,
    is_graded: bool,
) -> Problem:
    """Return a checked problem. Raises ValueError with the fault."""
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, dict):
        raise ValueError("is not an object with `problem` and `answer`")
    text = _user_message(row.get("problem"))
    if not isinstance(text, str) or not text.strip():
        raise ValueError("has no `problem`")
    text = strip_instruction(text) if is_graded else text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("has half a character (a lone surrogate) in its problem") from error
    answer = _answer(row) if is_graded else _answer_in_any_form(row)
    given = _place(row)
    if not given or not is_contest:
        level, subject = _level(row.get("level")), str(row.get("subject", "")) or None
        name = "math" if level is not None else _derive_datasource(source)
        return Problem(text, answer, name, split, None, level, subject, source, location, is_graded)
    if missing := [field for field in _PLACE if field not in given]:
        raise ValueError(f"has {', '.join(given)} but not all of {', '.join(_PLACE)}: no {', '.join(missing)}")
    value = canonical(answer)
    if is_graded and (not value.isdecimal() or len(value) > 3):
        raise ValueError(f"has the answer {answer[:80]!r}, but AIME answers are integers from 0 to 999")
    paper = _paper(given, from_zero)
    return Problem(text, answer, "aime", split, paper, source=source, location=location, is_graded=is_graded)


def _user_message(prompt: Any) -> Any:
    """Return the content of a chat that is one message of the user; anything else unchanged."""
    message = prompt[0] if isinstance(prompt, list) and len(prompt) == 1 else None
    return message.get("content") if isinstance(message, dict) and message.get("role") == "user" else prompt


def _answer(row: dict[str, Any]) -> str:
    """Return the gold answer, from its column or from the solution's last box. Raises ValueError without one."""
    answer = row.get("answer")
    if isinstance(answer, dict) or (isinstance(answer, str) and answer.lstrip().startswith("{")):
        answer = parse_label(answer).answer
    if isinstance(answer, float) and answer.is_integer():
        if abs(answer) > _EXACT:
            raise ValueError(f"has the number {answer:g} as its answer, which JSON rounds: write its digits as a text")
        answer = int(answer)
    if answer is None and isinstance(row.get("solution"), str):
        answers, reason = extract_boxed(row["solution"])
        answer = ", ".join(dict.fromkeys(answers))
        if reason:
            raise ValueError(f"has no `answer`, and none in its solution: {reason}")
    if isinstance(answer, bool) or not isinstance(answer, str | int) or not str(answer).strip():
        raise ValueError("has no `answer` (a text or an integer)")
    answer = str(answer).strip()
    if len(answer) > MAX_ANSWER_CHARS:
        raise ValueError(f"has an answer of {len(answer)} characters; the grader reads up to {MAX_ANSWER_CHARS}")
    if is_missing(answer):
        raise ValueError(f"has {answer!r} where its answer should be")
    if not is_gold(answer):
        raise ValueError(
            f"has an answer that the grader does not accept: {answer[:80]!r} (numbers go in digits, words in "
            "\\text{...})"
        )
    return answer


def _answer_in_any_form(row: dict[str, Any]) -> str:
    """Return the answer as it is, or as JSON if it is no text. Raises ValueError without one."""
    answer = row.get("answer")
    text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    if answer is None or not text.strip():
        raise ValueError("has no `answer`")
    try:
        label = parse_label(answer) if json.loads(text).keys() == {"answer", "split"} else None
    except (ValueError, AttributeError, RecursionError):  # most answers are not JSON of an object
        label = None
    return label.answer if label else text


def is_missing(answer: str) -> bool:
    """Say whether a placeholder such as N/A or nan stands where the answer should be."""
    while match := _WRAPPED.fullmatch(answer := answer.strip()):
        answer = match[1] or match[2]
    return answer == "NA" or bool(_MISSING.fullmatch(answer.lower()))


def is_gold(answer: str) -> bool:
    """Say whether the grader understands an answer, and so accepts other spellings of it."""
    if is_missing(answer) or answer.lower() in _WORDS:
        return False
    return grade(f"\\boxed{{{answer}}}", answer).correct and is_readable(spell(answer))


def _derive_datasource(source: str) -> str:
    """Return the data source of problems without contest place or level: their file's name, fit for a metric name."""
    name = re.sub(r"[^a-z0-9]+", "-", Path(source).stem.lower()).strip("-") or "own"
    return f"{name}-file" if name in INSTRUCTIONS else name


def _level(value: Any) -> int | None:
    if value is None:
        return None
    match = _LEVEL.match(str(value).strip())
    return int(match[1]) if match else 0


def _place(row: Any) -> dict[str, Any]:
    """Return the row's place in a contest; {} if it has none."""
    if not isinstance(row, dict):
        return {}
    contest_place = {name: row[name] for name in _PLACE if name in row}
    for pattern, name in ((_PAGE, "link"), (_PLACE_ID, "id")):
        if match := pattern.search(str(row.get(name, ""))):
            contest_place = match.groupdict() | contest_place
    return contest_place


def _paper(contest_place: dict[str, Any], from_zero: set[tuple[str, str]]) -> tuple[int, int, int]:
    """Return (year, contest, number from 1) of an AIME row. Raises ValueError if there is no such problem."""
    contest = _CONTESTS.get(str(contest_place["contest"]).strip())
    try:
        year, number = int(contest_place["year"]), int(contest_place["number"])
    except (TypeError, ValueError) as error:
        raise ValueError("has a year or number that is not an integer") from error
    if _paper_key(contest_place) in from_zero:
        number += 1
    if contest is None or not 1 <= number <= PROBLEMS_PER_PAPER or not 1983 <= year <= 2100:
        raise ValueError(
            f"has no such AIME problem: {year}, contest {contest_place['contest']!r}, number {contest_place['number']}"
        )
    return year, contest, number


def _paper_key(contest_place: dict[str, Any]) -> tuple[str, str]:
    return str(contest_place.get("year")).strip(), str(contest_place.get("contest")).strip()
