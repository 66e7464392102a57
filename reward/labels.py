"""The label of a prompt in a data file: the gold answer, and the split that the problem belongs to."""

import json
from typing import Any, NamedTuple

SPLITS = ("train", "eval")


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
