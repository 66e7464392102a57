"""Rows to problems: columns, bad rows, ids, repetitions."""

import hashlib
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.instructions import INSTRUCTIONS
from data.problems import Problem, merge_repeats, parse_rows
from data.sources import Row
from reward.answers import grade
from tests.data.conftest import make_aime_rows, make_math_rows


def parse(*rows: Any) -> tuple[list[Problem], list[str]]:
    return parse_rows([Row(f"f, line {number}", row) for number, row in enumerate(rows, 1)], "f", None)


@pytest.mark.parametrize(
    "row",
    [
        {"problem": "P", "answer": "33", "year": 2024, "contest": 2, "number": 4},
        {"problem": "P", "answer": "033", "year": "2024", "contest": "II", "number": "4"},
        {"ID": "2024-II-4", "Problem": "P", "Solution": "S", "Answer": 33},
        {"Question": "P", "Answer": 33.0, "Year": 2024, "Part": "II", "Problem Number": 4},
        {"id": 63, "problem": "P", "answer": "33", "url": "https://host/2024_AIME_II_Problems/Problem_4", "year": 2024},
    ],
)
def test_the_columns_of_aime_sets(row: dict[str, Any]) -> None:
    ((problem,), bad) = parse(row)
    assert not bad
    assert (problem.text, problem.paper, problem.id, problem.datasource) == ("P", (2024, 2, 4), "aime-2024-2-4", "aime")
    assert grade(f"\\boxed{{{problem.answer}}}", "33").correct


@pytest.mark.parametrize(
    ("row", "answer", "level", "subject"),
    [
        ({"answer": "\\frac{1}{2}", "level": 5, "subject": "Algebra"}, "\\frac{1}{2}", 5, "Algebra"),
        (
            {"solution": "First $\\boxed{1}$, then $\\boxed{\\frac{1}{2}}$.", "level": "Level 4", "type": "G"},
            "\\frac{1}{2}",
            4,
            "G",
        ),
        ({"solution": "$\\boxed{1}$ or $\\boxed{\\frac{1}{2}}$.", "level": "Level 4"}, "1, \\frac{1}{2}", 4, None),
        ({"solution": "So \\fbox{7}.", "level": "Level ?"}, "7", 0, None),
        ({"solution": "So $\\boxed 7$.", "answer": None}, "7", None, None),
        ({"expected_answer": "7", "solution": "\\boxed{8}", "subject": None}, "7", None, None),
    ],
)
def test_the_columns_of_math_sets(row: dict[str, Any], answer: str, level: int | None, subject: str | None) -> None:
    ((problem,), bad) = parse({"problem": "P"} | row)
    assert not bad
    assert (problem.answer, problem.level, problem.subject, problem.paper) == (answer, level, subject, None)


GOLDS = (
    "7", "-3", "1,234", "0.5", "\\frac{3}{4}", "3\\frac{1}{2}", "50\\%", "\\$5", "90^\\circ", "5\\text{ cm}",
    "12 inches", "2\\sqrt{3}", "x^2 - 3x", "\\pi r^2", "(1, 2)", "[0, \\infty)", "(-\\infty, 1) \\cup (2, 3]", "x = 5",
    "1 < x \\le 2", "\\{1, 2\\}", "1, 2, 3", "1 \\pm \\sqrt{2}", "1011_2", "4321_{\\text{five}}",
    "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}",
    "\\text{odd}", "\\text{(A)}", "\\text{June 20}", "A", "3:2", "\\mathbb{R}", "\\emptyset",
    "\\text{yes}", "\\text{no}", "\\text{two}", "\\text{none}", "xy", "abc", "\\infty", "na", "\\sin x",
)  # fmt: skip
NO_GOLDS = (
    "see the picture", "Monday", "2 + see below", "(1, see above)", "1, 2 and many more", "3 +", "\\unknown{3}", "?",
    "9^{9^{9}}", "see \\text{the picture}", "(" * 20 + "1" + ")" * 20,
    "yes", "No", "two", "Ten", "twelve", "true", "none", "DNE", "inf",
)  # fmt: skip


@pytest.mark.parametrize("answer", GOLDS)
def test_an_answer_that_the_grader_reads_is_accepted(answer: str) -> None:
    assert parse({"problem": "P", "answer": answer})[1] == []


@pytest.mark.parametrize("answer", NO_GOLDS)
def test_an_answer_that_the_grader_cannot_read_is_a_bad_row(answer: str) -> None:
    problems, [line] = parse({"problem": "P", "answer": answer})
    assert not problems and "line 1: has an answer that the grader does not accept" in line


@pytest.mark.parametrize(
    ("source", "row", "name"),
    [
        ("My problems (2).jsonl", {}, "my-problems-2"),
        ("math.jsonl", {}, "math-file"),
        ("aime.jsonl", {}, "aime-file"),
        ("org/name", {}, "name"),
        ("数学.jsonl", {}, "own"),
        ("My problems.jsonl", {"level": 5}, "math"),
        ("My problems.jsonl", {"year": 2024, "contest": 1, "number": 1}, "aime"),
    ],
)
def test_a_data_source_has_a_name_of_its_own(source: str, row: dict[str, Any], name: str) -> None:
    [problem], _ = parse_rows([Row("f", {"problem": "P", "answer": "1", **row})], source, None)
    assert problem.datasource == name
    assert problem.prompt == "P" + INSTRUCTIONS["aime" if name == "aime" else "math"]


def test_a_copy_in_another_file_repeats_the_one_with_a_place_or_level() -> None:
    files = {"a.jsonl": {}, "z.jsonl": {"level": 5}}
    rows = [Row(source, {"problem": "P", "answer": "1", **row}) for source, row in files.items()]
    problems = [parse_rows([row], row.location, None)[0][0] for row in rows]
    [kept], repeats, bad = merge_repeats(problems)
    assert (kept.datasource, len(repeats), bad) == ("math", 1, [])


BAD = {
    "is not an object": [1],
    "has no `problem`": {"answer": "1"},
    "has no `answer`": {"problem": "P", "answer": None},
    "none in its solution": {"problem": "P", "solution": "It is 1."},
    "cut inside": {"problem": "P", "solution": "It is \\boxed{1"},
    "has 'N/A' where its answer should be": {"problem": "P", "answer": "N/A"},
    "has 'NaN' where its answer should be": {"problem": "P", "answer": {"answer": " NaN", "split": "train"}},
    "has '\\\\text{n/a}' where": {"problem": "P", "answer": "\\text{n/a}"},
    "has 'NA' where": {"problem": "P", "answer": "NA"},
    "has '$n.a.$' where": {"problem": "P", "answer": "$n.a.$"},
    "has 'N / A' where": {"problem": "P", "answer": "N / A"},
    "has '\\\\mathrm{N/A}' where": {"problem": "P", "answer": "\\mathrm{N/A}"},
    "has 'np.nan' where": {"problem": "P", "answer": "np.nan"},
    "does not accept": {"problem": "P", "answer": "{1"},
    "half a character": {"problem": "P \ud800", "answer": "1"},
    "but not all of": {"problem": "P", "answer": "1", "year": 2022},
    "from 0 to 999": {"problem": "P", "answer": "1000", "year": 2022, "contest": 1, "number": 1},
    "no such AIME problem": {"problem": "P", "answer": "1", "year": 2022, "contest": 3, "number": 1},
    "not an integer": {"problem": "P", "answer": "1", "year": "x", "contest": 1, "number": 1},
}


def test_all_bad_rows_are_named_at_once_with_their_lines() -> None:
    problems, bad = parse(*make_math_rows(2), *BAD.values(), {"problem": "Q", "answer": "1"})
    assert len(problems) == 3 and len(bad) == len(BAD)
    for line, (number, reason) in zip(bad, enumerate(BAD, 3), strict=True):
        assert line.startswith(f"f, line {number}: ") and reason in line


def test_papers_that_count_from_zero_are_shifted() -> None:
    assert [one.paper for one in parse(*make_aime_rows(0))[0]] == [one.paper for one in parse(*make_aime_rows(1))[0]]
    sixteen = [*make_aime_rows(0)[:15], {**make_aime_rows()[0], "problem": "One too many.", "number": 15}]
    assert "number 15" in parse(*sixteen)[1][0]


def test_duplicates_are_kept_once_and_contradictions_dropped() -> None:
    same = {"problem": "Halve  a.\n", "answer": "07"}
    problems, _ = parse({"problem": "Halve a.", "answer": "7"}, same, {"problem": "b", "answer": "1"})
    kept, repeats, bad = merge_repeats(problems)
    assert sorted(" ".join(one.text.split()) for one in kept) == ["Halve a.", "b"] and not bad
    assert len(repeats) == 1 and "line 1" in repeats[0] and "line 2" in repeats[0]
    problems, _ = parse({"problem": "Halve a.", "answer": "8"}, same, {"problem": "b", "answer": "1"})
    kept, repeats, bad = merge_repeats(problems)
    assert [one.text for one in kept] == ["b"] and not repeats
    assert len(bad) == 1 and "another answer" in bad[0] and "line 1" in bad[0] and "line 2" in bad[0]


def test_a_contest_place_has_one_problem() -> None:
    first, second = make_aime_rows()[:2]
    contest_place = {name: first[name] for name in ("year", "contest", "number")}
    kept, _, bad = merge_repeats(parse(first, {**second, **contest_place})[0])
    assert not kept and "another answer" in bad[0]
    kept, _, bad = merge_repeats(parse(first, {**first, "number": 2})[0])
    assert not kept and "another contest place" in bad[0]


def test_a_problem_may_be_in_both_splits_and_keeps_its_contest_place() -> None:
    aime, math = (
        make_aime_rows()[0],
        {"problem": make_aime_rows()[0]["problem"], "answer": make_aime_rows()[0]["answer"]},
    )
    problems, _ = parse(aime, math)
    assert [one.datasource for one in merge_repeats(problems)[0]] == ["aime"]
    apart = [replace(one, split=split) for one, split in zip(problems, ("train", "eval"), strict=True)]
    assert len(merge_repeats(apart)[0]) == 2


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("12"), st.sampled_from((4, 5))), max_size=8),
    st.randoms(),
)
def test_what_is_kept_does_not_depend_on_the_order(drawn: list[tuple[str, str, int]], rng: random.Random) -> None:
    rows = [{"problem": text, "answer": answer, "level": level} for text, answer, level in drawn]
    shuffled = rng.sample(rows, len(rows))

    def list_kept(rows: list[dict]) -> list[tuple]:
        return [(one.text, one.answer, one.level) for one in merge_repeats(parse(*rows)[0])[0]]

    assert list_kept(rows) == list_kept(shuffled)
    assert len({one.id for one in merge_repeats(parse(*rows)[0])[0]}) == len(list_kept(rows))


def test_ids_are_stable_and_unique() -> None:
    problems, _ = parse(*make_aime_rows(), *make_math_rows(100))
    assert len({one.id for one in problems}) == 190
    digest = hashlib.sha256(b"Halve a.").hexdigest()
    row = {"problem": " Halve\na. ", "answer": "1"}
    assert parse(row | {"level": 4})[0][0].id == f"math-{digest[:16]}"
    assert {parse_rows([Row("p", row)], name, None)[0][0].id for name in "ab"} == {f"problem-{digest[:16]}"}
