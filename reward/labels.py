"""The label of a prompt in a data file: the gold answer, and the split that the problem belongs to."""

import json
import re
from typing import Any, NamedTuple

SPLITS = ("train", "eval")
# Dates, telephone numbers, words, and placeholders for a missing answer. The grader compares none of them
_NO_ANSWER = re.compile(r"\d+(-\d+)+|\d+(/\d+){2,}|n/?a|nan|(?=.*[a-z]{4})[a-z]+( [a-z]+)*", re.I)


class LabelError(ValueError):
    """An invalid label.

    Attributes:
        what: what is wrong with it.
        remedy: what to do about it.
    """

    def __init__(self, what: str, remedy: str = "") -> None:  # pickle passes one argument
        super().__init__(f"{what}: {remedy}" if remedy else what)
        self.what, self.remedy = what, remedy


class Label(NamedTuple):
    """The gold answer of a rollout, and the split it belongs to ("train" or "eval")."""

    answer: str
    split: str


def parse_label(label: Any) -> Label:
    """Reads a label: the gold answer itself (of the train split), or JSON with `answer` and `split`.

    Raises LabelError for a label without an answer or with an unknown split.
    """
    fields = label
    if isinstance(label, str) and label.lstrip().startswith("{"):
        try:
            fields = json.loads(label)
        except (ValueError, RecursionError):  # a gold answer may start with a brace: {1,2}
            fields = label
    if not isinstance(fields, dict):
        fields = {"answer": fields}
    answer, split = fields.get("answer"), fields.get("split", "train")
    if answer is None or isinstance(answer, dict | list) or not str(answer).strip():
        raise LabelError("a label has no answer", "give the gold answer or JSON with `answer` and `split`")
    if split not in SPLITS:
        raise LabelError("a label has an unknown split", f"use one of {', '.join(SPLITS)}")
    return Label(str(answer), split)


def is_gradable(answer: str) -> bool:
    """Tell whether the grader can compare a gold answer: a label of words is for a reward of the user's own."""
    return not _NO_ANSWER.fullmatch(answer.strip())
