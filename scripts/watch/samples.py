"""The newest rollouts of a run, and which are most informative."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo.run.progress import is_number
from grpo.run.run_files import RunFiles, read_samples
from reward.answers import MARKER
from scripts.report.samples import gold
from scripts.watch.text import flatten_text, number

_USER = re.compile(r"<\|start\|>user<\|message\|>(.*?)(?:<\|end\|>|\Z)", re.DOTALL)
# Characters, enough for any terminal: a response may have a hundred thousand.
_SHOWN = 1000


@dataclass(frozen=True)
class SampleLine:
    """What is shown of one rollout: why it is shown, its numbers, beginning of the question, end of the response."""

    why: str
    numbers: str
    question: str
    response: str


class NewestSamples:
    """Follows samples/step_N.jsonl of a run, and rereads a file only if it has changed.

    Attributes:
        step: the step of these rollouts; None without any.
        shown: the most informative rollouts, see :func:`pick`.
    """

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._seen: tuple[int, int, int] | None = None
        self.step: int | None = None
        self.shown: list[SampleLine] = []

    def refresh(self) -> None:
        """Look for newer rollouts."""
        files = self._files.sample_files("step")
        if not files:
            self.step, self.shown, self._seen = None, [], None
            return
        newest, file = list(files.items())[-1]
        try:
            stat = file.stat()
        except FileNotFoundError:  # a resumed run removes what it repeats
            return
        seen = (newest, stat.st_mtime_ns, stat.st_size)
        if seen != self._seen:
            self.step, self.shown, self._seen = newest, pick(read_samples(file)), seen


def pick(rows: Sequence[Mapping[str, Any]]) -> list[SampleLine]:
    """Return the wrong rollout with the highest reward, the right one with the lowest, and the longest.

    Without grades, those with the highest and the lowest reward of all.
    """
    chosen: dict[int, tuple[str, Mapping[str, Any]]] = {}
    wrong = [row for row in rows if row.get("correct") == 0]
    right = [row for row in rows if row.get("correct") == 1]
    ungraded = [] if wrong or right else rows
    for why, some, key, sign in (
        ("wrong with the highest reward", wrong, "reward", 1),
        ("right with the lowest reward", right, "reward", -1),
        ("the highest reward", ungraded, "reward", 1),
        ("the lowest reward", ungraded, "reward", -1),
        ("the longest", rows, "response_length", 1),
    ):
        known = [row for row in some if is_number(row.get(key))]
        if known:
            best = max(known, key=lambda row: sign * row[key])
            chosen.setdefault(id(best), (why, best))
    if not chosen and rows:
        chosen[0] = ("the first", rows[0])
    return [_describe(why, row) for why, row in chosen.values()]


def _describe(why: str, row: Mapping[str, Any]) -> SampleLine:
    known = {name: row[name] for name in ("reward", "judge_quality", "response_length") if is_number(row.get(name))}
    words = [f"{label} {number(known[name])}" for name, label in _LABELS.items() if name in known]
    if "response_length" in known:
        words.append(f"{known['response_length']:.0f} tokens" + (", cut" if row.get("truncated") == 1 else ""))
    if row.get("label") is not None:
        words.append(f"gold {flatten_text(gold(row['label'])[:_SHOWN])}")
    return SampleLine(why, "  ".join(words), question(str(row.get("prompt", ""))), end(str(row.get("response", ""))))


_LABELS = {"reward": "reward", "judge_quality": "quality"}


def question(prompt: str) -> str:
    """Return the beginning of the user's last message, or of a prompt without one."""
    messages = _USER.findall(prompt)
    return flatten_text(MARKER.sub(" ", messages[-1] if messages else prompt)[:_SHOWN])


def end(response: str) -> str:
    """Return the end of a response, where its answer is."""
    return flatten_text(MARKER.sub(" ", response[-_SHOWN:]))
