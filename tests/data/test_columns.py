"""Files of the user's own: CSV, prompts with labels, columns of other names, and what is said about unreadable ones."""

import json
from types import MappingProxyType

import pyarrow
import pyarrow.parquet
import pytest

from data.instructions import INSTRUCTIONS
from data.prepare import Options, Source, main, prepare
from data.problems import parse_rows
from data.sources import Row, read_source
from grpo.stack.problem import UserError
from tests.data.conftest import make_aime_rows, read_split, write_rows


def parse(*rows, own=MappingProxyType({})):
    return parse_rows([Row(f"f, line {number}", row) for number, row in enumerate(rows, 1)], "f.jsonl", None, own)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "1 + 1?", "label": "2"},
        {"prompt": "1 + 1?" + INSTRUCTIONS["math"], "label": '{"answer": "2", "split": "train"}'},
        {"prompt": [{"role": "user", "content": "1 + 1?"}], "label": {"answer": 2, "split": "eval"}},
    ],
)
def test_prompts_with_labels_are_problems_with_answers(row):
    [problem], bad = parse(row)
    assert not bad and (problem.text, problem.answer) == ("1 + 1?", "2")
    assert problem.prompt == "1 + 1?" + INSTRUCTIONS["math"], "the instruction stands once"


def test_what_prepare_wrote_can_be_prepared_again(tmp_path):
    rows = [{"problem": f"What is {n} plus {n}?", "answer": 2 * n} for n in range(1, 21)]
    prepare([Source(str(write_rows(tmp_path / "own.jsonl", rows)))], tmp_path / "a")
    prepare([Source(str(tmp_path / "a" / "train.jsonl"), "train"), Source(str(tmp_path / "a" / "eval.jsonl"), "eval")],
            tmp_path / "b")  # fmt: skip
    for split in ("train", "eval"):
        a, b = (
            [(row["prompt"], row["label"], row["id"]) for row in read_split(tmp_path / name, split)] for name in "ab"
        )
        assert sorted(a) == sorted(b)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'problem,answer\n"Add 1, and ""2""\nto 3.",6\n\nHalve 8.,4\n'),
        ("a.csv", '\ufeffProblem;Answer\r\n"Add 1, and ""2""\nto 3.";6\r\nHalve 8.;4\r\n'),
        ("a.tsv", 'problem\tanswer\n"Add 1, and ""2""\nto 3."\t6\nHalve 8.\t4\n'),
    ],
)
def test_tables_are_read(tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode())
    rows, about = read_source(str(tmp_path / name))
    problems, bad = parse_rows(rows, name, None)
    assert not bad and about["rows"] == 2
    assert [(one.text, one.answer) for one in problems] == [('Add 1, and "2"\nto 3.', "6"), ("Halve 8.", "4")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"problem,answer,answer\nP,1,2\n", "has the column 'answer' twice"),
        ("a.csv", b'problem,answer\n"P,1\n', "is not CSV"),
        ("a.csv", "problem,answer\nÄ,1\n".encode("latin-1"), "is not UTF-8"),
        ("a.json", b"[" * 200_000 + b"]" * 200_000, "nested too deeply"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_source(str(tmp_path / name))


def test_doubled_columns_of_parquet_are_named(tmp_path):
    table = pyarrow.Table.from_arrays([pyarrow.array(["P"]), pyarrow.array(["1"])], names=["answer", "answer"])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(UserError, match="has the column 'answer' twice"):
        read_source(str(tmp_path / "a.parquet"))


def test_bad_rows_of_files_are_named(tmp_path):
    deep = "[" * 200_000 + "]" * 200_000
    lines = ['{"problem": "P", "answer": "1", "answer": "2"}', deep, f'{{"problem": "Q", "x": {deep}}}']
    lines.append('{"problem": "R", "answer": "1"}')
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    problems, bad = parse_rows(read_source(str(tmp_path / "a.jsonl"))[0], "a.jsonl", None)
    assert [one.text for one in problems] == ["R"]
    assert [line.partition("a.jsonl, ")[2] for line in bad] == [
        "line 1: is not JSON (an object has the key 'answer' twice)",
        *(f"line {number}: is not JSON (it is nested too deeply)" for number in (2, 3)),
    ]
    (tmp_path / "b.csv").write_text("problem,answer\nP,1,2\nQ,1\n")
    _, [line] = parse_rows(read_source(str(tmp_path / "b.csv"))[0], "b.csv", None)
    assert "b.csv, line 2: has 3 cells, but the header has 2 columns (problem, answer)" in line


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"Answer": "1", "answer": "2"}, "has the column 'answer' twice"),
        ({"answer": "7" * 1001}, "an answer of 1001 characters; the grader reads up to 1000"),
        ({"answer": 1e300}, "the number 1e\\+300 as its answer, which JSON rounds"),
        ({"label": '{"split": "train"}'}, "a label has no answer"),
        ({"answer": '{"answer": ' + "[" * 200_000}, "an answer of 200011 characters"),
    ],
)
def test_a_bad_answer_is_named(row, message):
    problems, [line] = parse({"problem": "P", **row})
    assert not problems
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(line)


def test_a_gold_of_301_digits_is_kept_digit_by_digit():
    [problem], bad = parse({"problem": "P", "answer": int("7" * 301)})
    assert not bad and problem.answer == "7" * 301


@pytest.mark.parametrize("extra", [{"year": 2024}, {"number": 3}, {"year": "1999", "number": 17}, {"part": "b"}])
def test_a_part_of_a_contest_place_refuses_no_file(extra):
    problems, bad = parse({"problem": "P", "answer": "1234", **extra}, {"problem": "Q", "answer": "1", **extra})
    assert not bad and [one.datasource for one in problems] == ["f", "f"]


def test_a_part_of_a_place_beside_whole_places_is_a_bad_row():
    problems, [line] = parse(*make_aime_rows()[:3], {"problem": "P", "answer": "1", "year": 2024})
    assert len(problems) == 3 and "but not all of" in line


def test_columns_of_other_names(tmp_path):
    rows = [{"Aufgabe": f"Halve {2 * n}.", "Lösung ": str(n), "answer": "wrong"} for n in range(1, 11)]
    options = Options(problem_column="aufgabe", answer_column="Lösung")
    prepare([Source(str(write_rows(tmp_path / "own.jsonl", rows)))], tmp_path / "out", options)
    records = [*read_split(tmp_path / "out", "train"), *read_split(tmp_path / "out", "eval")]
    assert {json.loads(record["label"])["answer"] for record in records} == {str(n) for n in range(1, 11)}


@pytest.mark.parametrize(
    ("row", "own", "message"),
    [
        ({"aufgabe": "P", "answer": "1"}, {}, r"no column with the problem \(columns: aufgabe, answer\)"),
        ({"problem": "P", "gold": "1"}, {}, r"no column with the answer \(columns: problem, gold\)"),
        ({"problem": "P", "gold": "1"}, {"answer": "golds"}, r"no column 'golds' \(columns: problem, gold\)"),
    ],
)
def test_a_file_without_the_columns_names_those_that_it_has(row, own, message):
    with pytest.raises(UserError, match=message) as caught:
        parse(row, row, own=own)
    assert "-column" in caught.value.problem.remedy


def test_the_command_line_names_the_columns(tmp_path, capsys):
    (tmp_path / "own.csv").write_text("frage,antwort\n" + "".join(f"What is {n} plus 1?,{n + 1}\n" for n in range(20)))
    command = ["--source", str(tmp_path / "own.csv"), "--out", str(tmp_path / "out")]
    assert main(command) == 2
    assert "(columns: frage, antwort): name it with --problem-column" in capsys.readouterr().err
    assert main([*command, "--problem-column", "frage", "--answer-column", "antwort"]) == 0
    assert len(read_split(tmp_path / "out", "train")) == 16
