"""The checks of the preflight, by concern. Each yields what is wrong, with the remedy."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """What is wrong, and what to do about it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}\n    -> {self.remedy}"
