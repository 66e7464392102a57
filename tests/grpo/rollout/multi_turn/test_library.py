"""The retrieval environment's index: ranked search, and queries that would hold up others."""

import sqlite3

import pytest

from grpo.rollout.multi_turn.environment import ToolError
from grpo.rollout.multi_turn.retrieval import MAX_WORDS, Library


def make_documents(count: int):
    return ((f"title {number}", f"common word{number} " + "filler " * 20) for number in range(count))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The MATCH expressions that reach SQLite."""
    seen: list[str] = []

    def ask(self: Library, sql: str, *values):
        seen.extend(value for value in values if isinstance(value, str))
        return whole(self, sql, *values)

    whole = Library._ask
    monkeypatch.setattr(Library, "_ask", ask)
    return seen


def test_a_query_has_at_most_64_distinct_words(asked) -> None:
    library = Library(make_documents(50))
    [(number, title, _), *_] = library.search("WORD7 word7 " * 50_000 + "nothing", 3)
    assert (number, title) == (8, "title 7") and asked == ['"word7" OR "nothing"']
    library.search(" ".join(f"w{number}" for number in range(100_000)), 3)
    assert asked[-1].count(" OR ") == MAX_WORDS - 1 == 63
    assert library.search("?!", 3) == []
    [(number, *_)] = Library(iter([("a", "Eine Stra\u00dfe")])).search("STRASSE Stra\u00dfe", 3)
    assert number == 1, "SQLite folds other letters than Python"


def test_a_search_beyond_its_time_is_interrupted_and_a_read_goes_on() -> None:
    library = Library(make_documents(3000), seconds=-1)  # SQLite looks at the clock in long statements only
    for _ in range(2):
        with pytest.raises(ToolError, match="fewer words"):
            library.search("common filler", 3)
        assert library.read(1) is not None


def test_another_error_of_the_database_is_no_fault_of_the_query(monkeypatch) -> None:
    library = Library(make_documents(1))
    library._database.execute("DROP TABLE library")
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        library.search("common", 1)
