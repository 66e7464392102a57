"""The retrieval environment: ranked search, pages, and queries that would hold up others."""

import asyncio

import pytest

from grpo.environments import retrieval
from grpo.environments.conversation import score_conversation
from grpo.environments.environment import Score, SetupError, ToolError
from grpo.environments.retrieval import MAX_WORDS, Library
from tests.grpo.environments.scripted import Spoken, make_call, talk

TEXTS = {
    "rivers": "The longest river of the land is the Ona. It has 417 bridges, built in stone.",
    "mountains": "Snow lies on the peak of Kel all year. Goats climb there.",
    "towns": "The town of Arb lies by the river. " + "Its market is old. " * 200 + "At its end stands a tower.",
}


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    for title, text in TEXTS.items():
        (tmp_path / f"{title}.txt").write_text(text)
    monkeypatch.setenv(retrieval.VARIABLE, str(tmp_path))
    return tmp_path


def test_a_library_is_searched_and_read(corpus):
    calls = [
        make_call("search", {"query": "how many bridges?"}, "a"),
        make_call("read", {"document": 3}, "b"),
        make_call("read", {"document": 3, "offset": 2000}, "c"),
    ]
    policy = Spoken({"tool_calls": calls}, {"content": "It has \\boxed{417}."})
    environment = retrieval.Environment("How many bridges?", '{"answer": "417", "split": "train"}')
    outcome = talk(policy, environment)
    excerpts, page, rest = (message["content"] for message in outcome.messages if message["role"] == "tool")
    assert excerpts.splitlines()[0].startswith("[2] rivers: ") and "417 bridges" in excerpts
    assert len(excerpts) < 400  # an excerpt, not the document
    assert page.startswith("towns\nThe town") and page.endswith("characters more]") and "tower" not in page
    assert rest.endswith("At its end stands a tower.")
    assert [message["tool_call_id"] for message in outcome.messages if message["role"] == "tool"] == ["a", "b", "c"]
    assert (outcome.ending, outcome.turns, outcome.calls, outcome.errors) == ("done", 2, 3, 0)
    score = asyncio.run(score_conversation(environment, outcome, 60))
    assert score == Score(1.0, 1.0, {"correct": 1.0, "answered": 1.0})


def test_several_queries_are_answered_in_one_call(corpus):
    def search(query):
        return asyncio.run(retrieval.Environment("q", "1").call("search", {"query": query, "count": 1}))

    bridges, goats = search("bridges"), search("goats")
    assert "417 bridges" in bridges and "[1] mountains" in goats
    assert search(["bridges", "goats", "?!"]) == f"bridges\n{bridges}\n\ngoats\n{goats}\n\n?!\nnothing was found"
    assert search(["goats"]) == f"goats\n{goats}"


@pytest.mark.parametrize("wrong, heard", [
    (make_call("find", {}), "no tool 'find'"),
    (make_call("search", {}), "needs a query"), (make_call("search", {"query": []}), "needs a query"),
    (make_call("search", {"query": ["a", 7]}), "needs a query"), (make_call("search", {"query": ["a"] * 11}), "10"),
    (make_call("search", {"query": "a", "count": 99}), "from 1 to 10"),
    (make_call("read", {"document": "x"}), "whole number"), (make_call("read", {"document": 9}), "no document 9"),
    (make_call("read", {"document": 10**30}), "no document"),
    (make_call("search", {"query": 'NEAR("a" OR* ) AND: -'}), None),
    (make_call("search", {"query": "?!"}), "nothing was found"),
])  # fmt: skip
def test_a_call_that_is_not_supported_is_an_observation(corpus, wrong, heard):
    outcome = talk(Spoken({"tool_calls": [wrong]}, {"content": "so be it"}), retrieval.Environment("q", "1"))
    observed = outcome.messages[3]["content"]
    assert outcome.ending == "done" and outcome.errors == observed.startswith("error: ")
    assert heard is None or heard in observed


@pytest.mark.parametrize(
    "ending, content, right",
    [("done", "\\boxed{7}", 1.0), ("done", "no idea", 0.0), ("length", "\\boxed{7", 0.0), ("turns", None, 0.0)],
)
def test_only_a_final_answer_is_rewarded(ending, content, right):
    last = {"role": "assistant", "content": content} if content else {"role": "tool", "content": "\\boxed{7}"}
    score = asyncio.run(retrieval.Environment("q", "7").score([last], ending))
    assert score.reward == score.logs["correct"] == right


def test_a_library_that_cannot_be_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv(retrieval.VARIABLE, raising=False)
    with pytest.raises(SetupError, match="--library"):
        retrieval.Environment.check()
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.jsonl").write_text('{"title": "a"}\n')
    for path, wrong in (("empty", "empty"), ("bad.jsonl", "line 1"), ("gone", "gone")):
        monkeypatch.setenv(retrieval.VARIABLE, str(tmp_path / path))
        with pytest.raises(SetupError, match=wrong):
            retrieval.Environment.check()


def make_documents(count):
    return ((f"title {number}", f"common word{number} " + "filler " * 20) for number in range(count))


@pytest.fixture
def asked(monkeypatch):
    """The MATCH expressions that reach SQLite."""
    seen: list[str] = []

    def ask(self, sql, *values):
        seen.extend(value for value in values if isinstance(value, str))
        return whole(self, sql, *values)

    whole = Library._ask
    monkeypatch.setattr(Library, "_ask", ask)
    return seen


def test_a_query_has_at_most_64_distinct_words(asked):
    library = Library(make_documents(50))
    [(number, title, _), *_] = library.search("WORD7 word7 " * 50_000 + "nothing", 3)
    assert (number, title) == (8, "title 7") and asked == ['"word7" OR "nothing"']
    library.search(" ".join(f"w{number}" for number in range(100_000)), 3)
    assert asked[-1].count(" OR ") == MAX_WORDS - 1 == 63
    [(number, *_)] = Library(iter([("a", "Eine Stra\u00dfe")])).search("STRASSE Stra\u00dfe", 3)
    assert number == 1, "SQLite folds other letters than Python"


def test_a_search_beyond_its_time_is_interrupted_and_a_read_goes_on():
    library = Library(make_documents(3000), seconds=-1)  # SQLite looks at the clock in long statements only
    for _ in range(2):
        with pytest.raises(ToolError, match="words"):
            library.search("common filler", 3)
        assert library.read(1) is not None
