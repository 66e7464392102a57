"""Problems that a user can fix. What is wrong and the remedy stay separate until they are printed."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """What is wrong, and what to do about it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}\n    -> {self.remedy}"


class UserError(ValueError):
    """An error that the user can fix.

    Attributes:
        problem: what is wrong, and the remedy, which is "" if the raiser gave only a message.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}: {remedy}" if remedy else what)
        self.problem = Problem(what, remedy)
