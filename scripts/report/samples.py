"""Which rollouts a report shows, split into prompt, thinking and answer."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.run.run_files import read_samples
from grpo.run.run_state import Run
from reward.answers import final_message
from reward.labels import parse_label
from scripts.report import scales
from scripts.report.runs import LARGEST, Row

LONGEST = 24_000  # characters of a text that are shown
ABOUT = 160  # characters of a problem beside the reason to read it
FILES = 24  # sample files that a report uses, over all its runs
_HEADERS = re.compile(r"((?:<\|(?:start|channel|constrain)\|>[^<\n]{0,80}|<\|(?:message|end|return|call)\|>)+)")


@dataclass(frozen=True)
class Text:
    """A piece of a text; headers are harmony's special tokens with the names between them."""

    text: str
    is_header: bool = False


@dataclass(frozen=True)
class ReadRollout:
    """One rollout to read.

    Attributes:
        why: what makes it worth reading: it is an extreme of its step.
        correct: None without a grade.
        reward: "" if it is unknown.
        about: the problem's first words.
        numbers: name and value of each of its numbers.
        answer: what the grader reads; None if the response has no final message.
    """

    why: str
    correct: bool | None
    reward: str
    about: str
    gold: str
    numbers: list[tuple[str, str]]
    prompt: list[Text]
    thinking: list[Text]
    answer: list[Text] | None

    @property
    def grade(self) -> str:
        """Return what its heading says of it."""
        if self.correct is None:
            return f"reward {self.reward}" if self.reward else "no grade"
        return "right" if self.correct else "wrong"


@dataclass(frozen=True)
class Group:
    """Rollouts of one file."""

    title: str
    count: int
    samples: list[ReadRollout]


def groups(run: Run, runs: int) -> list[Group]:
    """Return samples of the first, middle and last step, and of the first and last evaluation.

    Args:
        runs: the number of runs that share the report.
    """
    few = runs > FILES // 5
    chosen: list[tuple[str, Path]] = []
    for kind, name, count in (("step", "Training, step", 1 if few else 3), ("eval", "Held-out, step", 1 if few else 2)):
        files = list(run.files.sample_files(kind).items())
        chosen += [(f"{name} {step}", file) for step, file in spread(files, count)]
    made = [_group(title, file) for title, file in chosen]
    return [group for group in made if group.samples]


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """Return up to `count` of the items, the last one and others at even distances from it."""
    if count == 1 or len(items) <= 1:
        return list(items[-1:])
    return [items[index] for index in sorted({round(n * (len(items) - 1) / (count - 1)) for n in range(count)})]


def _group(title: str, file: Path) -> Group:
    rows = [row for row in read_samples(file) if isinstance(row.get("response"), str)]
    return Group(title, len(rows), [describe(row, why) for row, why in extremes(rows)])


def extremes(rows: Sequence[Row]) -> list[tuple[Row, str]]:
    """Return the rollouts worth reading, each once, with the reason."""
    right = [row for row in rows if _number(row, "correct") == 1]
    wrong = [row for row in rows if _number(row, "correct") == 0]
    rewarded = [] if right or wrong else [row for row in rows if _number(row, "reward") is not None]
    by_reward, by_length = _make_key("reward"), _make_key("response_length")
    candidates = [
        ("highest reward of the wrong ones", max(wrong, key=by_reward, default=None)),
        ("lowest reward of the right ones", min(right, key=by_reward, default=None)),
        ("highest reward", max(rewarded, key=by_reward, default=None)),
        ("lowest reward", min(rewarded, key=by_reward, default=None)),
        ("longest", max(rows, key=by_length, default=None)),
        ("of middle length", sorted(rows, key=by_length)[len(rows) // 2] if rows else None),
        ("no answer", next((row for row in rows if _number(row, "answered") == 0), None)),
        *((why, _find_marked(rows, why)) for why in ("most surprising", "largest loss", "least likely token")),
    ]
    chosen: dict[int, tuple[Row, str]] = {}
    for why, row in candidates:
        if row is not None:
            known = chosen.get(id(row))
            chosen[id(row)] = (row, f"{known[1]}, {why}" if known else why)
    return list(chosen.values())


def _find_marked(rows: Sequence[Row], why: str) -> Row | None:
    """Return the rollout that the run itself marks so: the report does not know its tokens."""
    return next((row for row in rows if why in (row.get("extremes") or ())), None)


def _make_key(name: str) -> Callable[[Row], float]:
    return lambda row: _number(row, name) or 0.0


def _number(row: Row, name: str) -> float | None:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) and abs(value) < LARGEST else None


def describe(row: Row, why: str) -> ReadRollout:
    """Return a record of samples/ for the page."""
    thinking, answer = split(row["response"])
    numbers = [(name, scales.text(value)) for name in row if (value := _number(row, name)) is not None]
    extra = [(name, str(row[name])) for name in ("datasource", "answer", "reason") if row.get(name) is not None]
    prompt = str(row.get("prompt") or "")
    return ReadRollout(
        why,
        {1.0: True, 0.0: False}.get(_number(row, "correct")),  # type: ignore[arg-type]
        dict(numbers).get("reward", ""),
        quote_problem(prompt),
        gold(row.get("label")),
        [*extra, *((name, value) for name, value in numbers if name not in ("seed", "correct"))],
        pieces(prompt),
        pieces(thinking),
        None if answer is None else pieces(answer),
    )


def quote_problem(prompt: str) -> str:
    """Return the first words of the problem in a prompt."""
    words = [piece.text.strip() for piece in pieces(prompt) if not piece.is_header and piece.text.strip()]
    return words[-1][:ABOUT] if words else ""


def split(response: str) -> tuple[str, str | None]:
    """Return what precedes the final message, and the message that the grader reads, with what follows it."""
    message = final_message(response)
    if message is None:
        return response, None
    start = response.rindex(message)
    return response[:start], response[start:]


def gold(label: Any) -> str:
    """Return the answer of a label, or a label of a reward of the user's own."""
    try:
        return str(parse_label(label).answer)
    except ValueError:  # a label for a custom reward function
        return "" if label is None else str(label)


def pieces(text: str) -> list[Text]:
    """Return a text with its headers separated, and without its middle if it is long."""
    if len(text) > LONGEST:
        left_out = len(text) - LONGEST
        text = f"{text[: LONGEST // 2]}\n[... {left_out} characters left out ...]\n{text[-LONGEST // 2 :]}"
    parts = [(part, index % 2 == 1) for index, part in enumerate(_HEADERS.split(text))]
    return [Text(part, is_header) for part, is_header in parts if part]
