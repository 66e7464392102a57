"""Counts and numbers for people."""

from collections.abc import Sequence


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun: "1 rank", "2 ranks", "6,400 calls"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def format_numbers(noun: str, numbers: Sequence[int]) -> str:
    """Return a noun with ascending numbers: "engine 3", "engines 4, 5", "engines 0 to 7"."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and last - first == len(numbers) - 1:
        return f"{noun}s {first} to {last}"
    return f"{noun}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
