"""Counts for people."""


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun: "1 rank", "2 ranks", "6,400 calls"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
