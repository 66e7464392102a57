"""Counts for people."""


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: "1 rank", "2 ranks", "6,400 calls"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
