"""Answers of every type become text as a person writes it, and what the grader cannot read is refused."""

import json
import math
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.problems import Form, parse_rows
from data.sources import is_gold, read_answer, read_source
from reward.answers import grade

COLUMNS = {  # what a column of a parquet file holds, its type, and what a person writes
    "date32": (date(2024, 3, 12), pyarrow.date32(), "2024-03-12"),
    "date64": (date(2024, 3, 12), pyarrow.date64(), "2024-03-12"),
    "day": (datetime(2024, 3, 12), pyarrow.timestamp("ns"), "2024-03-12"),
    "moment": (datetime(2024, 3, 12, 9, 30), pyarrow.timestamp("us"), "2024-03-12 09:30:00"),
    "half": (0.5, pyarrow.float64(), "0.5"),
    "whole": (18.0, pyarrow.float64(), "18"),
    "small": (1e-7, pyarrow.float64(), "0.0000001"),
    "float32": (0.1, pyarrow.float32(), "0.1"),
    "decimal": (Decimal("18.50"), pyarrow.decimal128(9, 2), "18.5"),
    "big": (2**63, pyarrow.uint64(), "9223372036854775808"),
    "true": (True, pyarrow.bool_(), "true"),
    "text": ("007", pyarrow.string(), "007"),
}


@pytest.mark.parametrize("column", COLUMNS)
def test_an_answer_of_a_parquet_file_is_what_a_person_writes(tmp_path: Path, column: str) -> None:
    value, kind, written = COLUMNS[column]
    table = pyarrow.table({"problem": ["P", "Q"], column: pyarrow.array([value, None], kind)})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    rows, _ = read_source(str(tmp_path / "a.parquet"))
    [problem], [fault] = parse_rows(rows, "a.parquet", None, Form(answer=column, is_graded=False))
    assert problem.answer == written
    assert "row 2" in fault and repr(column) in fault


@given(st.integers() | st.floats(-(2.0**53), 2.0**53) | st.decimals(allow_nan=False, allow_infinity=False, places=3))
def test_a_number_keeps_its_value(number: float | Decimal) -> None:
    text = read_answer(number, "answer", is_graded=False)
    assert type(number)(text) == number and "e" not in text.lower()


@pytest.mark.parametrize("value", [b"x", [1, 2], {"a": 1}, 1e300, math.inf])
def test_a_value_that_is_no_answer_is_named_with_row_column_and_type(tmp_path: Path, value: object) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"problem": ["P"], "gold": [value]}), tmp_path / "a.parquet")
    rows, _ = read_source(str(tmp_path / "a.parquet"))
    problems, [fault] = parse_rows(rows, "a.parquet", None, Form(answer="gold"))
    assert not problems
    for said in ("row 1", "'gold'", type(value).__name__, repr(value)):
        assert said in fault


@pytest.mark.parametrize("value", [None, math.nan, "", "  ", [], {"answer": None}])
def test_a_row_without_an_answer_is_bad(value: object) -> None:
    with pytest.raises(ValueError, match="answer"):
        read_answer(value, "answer")


@pytest.mark.parametrize(
    ("value", "after", "answer"),
    [
        ("He has 3+5=<<3+5=8>>8.\n#### 8", "####", "8"),
        ("#### 1\n#### 1,234\n", "####", "1,234"),
        (["18"], None, "18"),
        ({"answer": 2, "split": "eval"}, None, "2"),
        ('{"answer": "{1, 2}", "split": "train"}', None, "{1, 2}"),
        ("First $\\boxed{1}$, then $\\boxed{\\frac{1}{2}}$.", None, "\\frac{1}{2}"),
        ("$\\boxed{1}$ or $\\boxed{2}$.", None, "1, 2"),
        (int("7" * 301), None, "7" * 301),
    ],
)
def test_where_an_answer_stands(value: object, after: str | None, answer: str) -> None:
    assert read_answer(value, "answer", after) == answer


@pytest.mark.parametrize("value", [[1, 2], {"tests": [1], "at": date(2024, 3, 12)}, "see the picture", " N/A ", "{1"])
def test_a_reward_of_ones_own_gets_any_answer(value: object) -> None:
    text = read_answer(value, "answer", is_graded=False)
    assert text == value if isinstance(value, str) else json.loads(text) == json.loads(json.dumps(value, default=str))


GOLDS = (
    "7", "-3", "1,234", "0.5", "\\frac{3}{4}", "3\\frac{1}{2}", "50\\%", "\\$5", "90^\\circ", "5\\text{ cm}",
    "12 inches", "2\\sqrt{3}", "x^2 - 3x", "\\pi r^2", "(1, 2)", "[0, \\infty)", "(-\\infty, 1) \\cup (2, 3]", "x = 5",
    "1 < x \\le 2", "\\{1, 2\\}", "1, 2, 3", "1 \\pm \\sqrt{2}", "1011_2", "4321_{\\text{five}}", "3/4", "5 - 3x",
    "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}",
    "\\text{odd}", "\\text{(A)}", "\\text{June 20}", "\\text{2024-03-12}", "A", "xy", "\\infty", "\\sin x",
)  # fmt: skip
NO_GOLDS = (
    "see the picture", "Monday", "2 + see below", "1, 2 and many more", "3 +", "\\unknown{3}", "?", "{1",
    "9^{9^{9}}", "see \\text{the picture}", "yes", "No", "two", "twelve", "true", "none", "inf",
    "N/A", "NaN", "\\text{n/a}", "$n.a.$", "np.nan", "7" * 1001,
    "2024-03-12", "555-1234", "1-2-3", "3/12/2024",
)  # fmt: skip


@pytest.mark.parametrize("answer", GOLDS)
def test_an_answer_that_the_grader_reads_is_accepted(answer: str) -> None:
    assert read_answer(answer, "answer") == answer and grade(f"\\boxed{{{answer}}}", answer).correct


@pytest.mark.parametrize("answer", NO_GOLDS)
def test_an_answer_that_the_grader_cannot_read_is_refused(answer: str) -> None:
    with pytest.raises(ValueError, match="grader"):
        read_answer(answer, "answer")


def test_a_look_at_a_label_compares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison of answers that need algebra starts a process."""
    monkeypatch.setattr("subprocess.Popen", None)
    monkeypatch.setattr("reward.answers.equal", None)
    assert is_gold("\\frac{x^2 + 1}{\\sqrt{y}}")
