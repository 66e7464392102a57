"""Rows to problems: columns, bad rows, ids, repetitions."""

import hashlib
import random
import unicodedata
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.problems import INSTRUCTIONS, Form, Problem, merge_repeats, parse_rows
from data.sources import Row
from grpo.rollout.problem_files import normalize
from grpo.stack.problem import UserError
from tests.data.conftest import make_aime_rows, make_math_rows


def parse(*rows: Any, form: Form | None = None) -> tuple[list[Problem], list[str]]:
    return parse_rows([Row(f"f, line {number}", row) for number, row in enumerate(rows, 1)], "f", None, form)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "1 + 1?", "label": "2"},
        {"prompt": "1 + 1?" + INSTRUCTIONS["math"], "label": '{"answer": "2", "split": "train"}'},
        {"prompt": [{"role": "user", "content": "1 + 1?"}], "label": {"answer": 2, "split": "eval"}},
    ],
)
def test_a_prompt_becomes_a_problem_whose_instruction_stands_once(row: dict[str, Any]) -> None:
    [problem], bad = parse(row, form=Form("prompt", "label"))
    assert not bad and (problem.text, problem.answer) == ("1 + 1?", "2")
    assert problem.record["prompt"] == "1 + 1?" + INSTRUCTIONS["math"]


def test_a_column_may_be_nested() -> None:
    verl = {"prompt": [{"role": "user", "content": "P"}], "reward_model": {"style": "rule", "ground_truth": "18"}}
    [problem], _ = parse(verl, form=Form("prompt", "reward_model.ground_truth"))
    assert (problem.text, problem.answer) == ("P", "18")
    [problem], _ = parse({"a.b": "P", "answer": "1"}, form=Form("a.b"))
    assert problem.text == "P"


@pytest.mark.parametrize(
    ("row", "form", "said"),
    [
        ({"question": "P", "answer": "1"}, Form(), ("'problem'", "question, answer", "--problem-column")),
        ({"problem": "P", "Answer": "1"}, Form(), ("'answer'", "problem, Answer", "--answer-column")),
        ({"problem": "P", "a": {"b": "1"}}, Form(answer="a.c"), ("'a.c'", "problem, a.b", "--answer-column")),
    ],
)
def test_a_file_without_a_column_names_those_that_it_has(row: dict[str, Any], form: Form, said) -> None:
    with pytest.raises(UserError) as caught:
        parse(row, row, form=form)
    assert all(each in str(caught.value) for each in said)


BAD = {
    "not JSON": ValueError("is not JSON"),
    "not an object": [1],
    "column 'problem'": {"answer": "1"},
    "column 'answer'": {"problem": "P", "answer": None},
    "one message of the user": {"problem": [{"role": "assistant", "content": "P"}], "answer": "1"},
    "cut inside": {"problem": "P", "answer": "It is \\boxed{1"},
    "grader cannot read": {"problem": "P", "answer": "{1"},
}


def test_bad_rows_are_named_with_their_lines() -> None:
    problems, bad = parse(*make_math_rows(2), *BAD.values(), {"problem": "Q", "answer": "1"})
    assert len(problems) == 3 and len(bad) == len(BAD)
    for line, (number, reason) in zip(bad, enumerate(BAD, 3), strict=True):
        assert line.startswith(f"f, line {number}: ") and reason in line


@pytest.mark.parametrize(
    ("source", "row", "name"),
    [
        ("My problems (2).jsonl", {}, "my-problems-2"),
        ("math.jsonl", {}, "math-file"),
        ("数学.jsonl", {}, "own"),
        ("My problems.jsonl", {"level": 5}, "math"),
        ("My problems.jsonl", {"year": 2024, "contest": 1, "number": 1}, "aime"),
        ("My problems.jsonl", {"year": 2024, "number": 1}, "my-problems"),
        ("My problems.jsonl", {"year": 2024, "contest": "USAMO", "number": 1}, "my-problems"),
    ],
)
def test_a_data_source_has_a_name_of_its_own(source: str, row: dict[str, Any], name: str) -> None:
    [problem], _ = parse_rows([Row("f", {"problem": "P", "answer": "1", **row})], source, None)
    assert problem.datasource == name
    assert problem.record["prompt"] == "P" + INSTRUCTIONS["aime" if name == "aime" else "math"]


def test_papers_that_count_from_zero_are_shifted() -> None:
    mixed = make_aime_rows()[:45] + make_aime_rows(0)[45:]
    assert [one.paper for one in parse(*mixed)[0]] == [one.paper for one in parse(*make_aime_rows())[0]]


def test_repetitions_are_kept_once_and_contradictions_dropped() -> None:
    same = {"problem": "Halve  A.\n", "answer": "07"}
    problems, _ = parse({"problem": "Halve a.", "answer": "7"}, same, {"problem": "b", "answer": "1"})
    kept, [repeat], bad = merge_repeats(problems)
    assert len(kept) == 2 and not bad and "line 1" in repeat and "line 2" in repeat
    problems, _ = parse({"problem": "Halve a.", "answer": "8"}, same, {"problem": "b", "answer": "1"})
    kept, repeats, [contradiction] = merge_repeats(problems)
    assert [one.text for one in kept] == ["b"] and not repeats
    assert "line 1" in contradiction and "line 2" in contradiction


def test_a_contest_place_has_one_problem_and_a_copy_without_a_place_repeats_it() -> None:
    first, second = make_aime_rows()[:2]
    problems, _ = parse(first, second | {"number": 1}, {"problem": first["problem"], "answer": first["answer"]})
    kept, [repeat], [contradiction] = merge_repeats(problems)
    assert not kept and "line 3" in repeat and "another answer" in contradiction
    apart = [replace(problems[0], split=split) for split in ("train", "eval")]
    assert len(merge_repeats(apart)[0]) == 2


@given(st.text(), st.sampled_from(["NFC", "NFD"]), st.sampled_from([str, str.upper, str.lower]))
def test_one_text_has_one_normal_form(text: str, form: Any, case: Any) -> None:
    assert normalize(unicodedata.normalize(form, text)) == normalize(text) == normalize(f" {text}\n")
    assert normalize(case(text)) == normalize(text) or not text.isascii()


def test_different_problems_have_different_normal_forms() -> None:
    assert len(set(map(normalize, ("3² + 1?", "32 + 1?", "e + 1?", "é + 1?")))) == 4


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("12"), st.sampled_from((4, 5))), max_size=8),
    st.randoms(),
)
def test_what_is_kept_does_not_depend_on_the_order(drawn: list[tuple[str, str, int]], rng: random.Random) -> None:
    rows = [{"problem": text, "answer": answer, "level": level} for text, answer, level in drawn]

    def list_kept(rows: list[dict]) -> list[tuple]:
        return [(one.text, one.answer, one.level, one.id) for one in merge_repeats(parse(*rows)[0])[0]]

    assert list_kept(rows) == list_kept(rng.sample(rows, len(rows)))


def test_ids_are_stable_and_unique() -> None:
    problems, _ = parse(*make_aime_rows(), *make_math_rows(100))
    assert len({one.id for one in problems}) == 190
    digest = hashlib.sha256(b"Halve a.").hexdigest()
    row = {"problem": " Halve\na. ", "answer": "1"}
    assert parse(row | {"level": 4})[0][0].id == f"math-{digest[:16]}"
    assert {parse_rows([Row("p", row)], name, None)[0][0].id for name in "ab"} == {f"problem-{digest[:16]}"}
