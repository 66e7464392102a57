"""Which rollouts a report shows, split into prompt, thinking and answer."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grpo.run.run_files import read_samples
from grpo.run.run_state import Run
from reward.answers import final_message, parse_label
from scripts.report.numbers import LARGEST

LONGEST = 24_000  # characters of a text that are shown
Row = dict[str, Any]


def choose(run: Run, few: bool) -> list[tuple[str, list[Row]]]:
    """Return titles and rollouts: of the first, middle and last step, and the last evaluation. `few`: the last ones."""
    steps, evals = (list(run.files.sample_files(kind).items()) for kind in ("step", "eval"))
    places = sorted({len(steps) - 1} if few else {0, len(steps) // 2, len(steps) - 1}) if steps else []
    files = [(f"Training, step {steps[place][0]}", steps[place][1]) for place in places]
    files += [(f"Held-out, step {step}", file) for step, file in evals[-1:]]
    return [(title, rollouts) for title, file in files if (rollouts := _read(file))]


def _read(file: Path) -> list[Row]:
    rows = [row for row in read_samples(file) if isinstance(row.get("response"), str)]
    return [_describe(row, why) for row, why in list_extremes(rows)]


def list_extremes(rows: Sequence[Row]) -> list[tuple[Row, str]]:
    """Return the rollouts worth reading, each once, with the reasons."""
    right, wrong = ([row for row in rows if _number(row, "correct") == grade] for grade in (1, 0))
    reward, length = _get("reward"), _get("response_length")
    found = [
        ("highest reward of the wrong ones", max(wrong, key=reward, default=None)),
        ("lowest reward of the right ones", min(right, key=reward, default=None)),
        ("highest reward", None if right or wrong else max(rows, key=reward, default=None)),
        ("lowest reward", None if right or wrong else min(rows, key=reward, default=None)),
        ("longest", max(rows, key=length, default=None)),
        ("no answer", next((row for row in rows if _number(row, "answered") == 0), None)),
    ]
    for why in ("most surprising", "largest loss", "least likely token"):  # the run knows the tokens, and marks them
        found.append((why, next((row for row in rows if why in (row.get("extremes") or ())), None)))
    reasons: dict[int, list[str]] = {}
    for why, row in found:
        if row is not None:
            reasons.setdefault(id(row), []).append(why)
    return [(row, ", ".join(reasons[id(row)])) for row in rows if id(row) in reasons]


def _get(name: str) -> Callable[[Row], float]:
    return lambda row: _number(row, name) or 0.0


def _number(row: Row, name: str) -> float | None:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) and abs(value) < LARGEST else None


def _describe(row: Row, why: str) -> Row:
    """Return what the page shows of a rollout; `answer` is what the grader reads."""
    message = final_message(row["response"])
    start = len(row["response"]) if message is None else row["response"].rindex(message)
    numbers = [(name, f"{value:.5g}") for name in row if (value := _number(row, name)) is not None]
    numbers += [(name, str(row[name])) for name in ("datasource", "answer", "reason") if row.get(name) is not None]
    grade = {1.0: "right", 0.0: "wrong"}.get(_number(row, "correct"), "not graded")  # type: ignore[arg-type]
    about = {"why": why, "grade": grade, "gold": _read_gold(row.get("label")), "numbers": numbers}
    thinking, answer = row["response"][:start], row["response"][start:]
    return about | {"prompt": _cut(str(row.get("prompt") or "")), "thinking": _cut(thinking), "answer": _cut(answer)}


def _read_gold(label: Any) -> str:
    try:
        return str(parse_label(label).answer)
    except ValueError:  # a label for a reward of the user's own
        return "" if label is None else str(label)


def _cut(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST // 2]}\n[... {len(text) - LONGEST} characters left out ...]\n{text[-LONGEST // 2 :]}"
