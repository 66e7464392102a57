"""Problems that a user can fix. What is wrong and the remedy stay separate until they are printed."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """What is wrong, and what to do about it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}\n    -> {self.remedy}" if self.remedy else self.what


class UserError(ValueError):
    """An error that the user can fix.

    Attributes:
        problem: what is wrong, and the remedy, which is "" if unknown.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        separator = "\n" if "\n" in what else ": "  # a list of what is wrong ends with the remedy on its own line
        super().__init__(f"{what}{separator}{remedy}" if remedy else what)
        self.problem = Problem(what, remedy)
