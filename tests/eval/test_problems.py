import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import prepare
from eval.problems import derive_seed, read_problems
from grpo.stack.problem import UserError


def write(file, *rows):
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return file


def test_prepared_files_are_read_in_their_order(tmp_path):
    prepare.main(["--source", "synthetic", "--train-count", "5", "--eval-count", "7", "--out", str(tmp_path)])
    problems = read_problems(tmp_path / "eval.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "eval.jsonl").read_text().splitlines()]
    assert [problem.id for problem in problems] == [row["id"] for row in rows]
    assert [problem.label for problem in problems] == [json.loads(row["label"])["answer"] for row in rows]
    assert {problem.datasource for problem in problems} == {"synthetic"}


GOOD = {"prompt": "p", "label": "1", "id": "a"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["no json"], "line 1"),
        ([GOOD, "[1]"], "line 2"),
        ([{"label": "1", "id": "a"}], "prompt"),
        ([{"prompt": "p", "id": "a"}], "line 1"),
        ([{"prompt": "p", "label": "1"}], "'id'"),
        ([GOOD, GOOD], "line 2"),
        ([], "data.jsonl"),
    ],
)
def test_errors_name_their_line(tmp_path, rows, message):
    with pytest.raises(UserError, match=message):
        read_problems(write(tmp_path / "data.jsonl", *rows))


def test_a_missing_or_binary_file_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"none\.jsonl.*data\.prepare"):
        read_problems(tmp_path / "none.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="binary"):
        read_problems(tmp_path / "binary")


@given(
    st.lists(st.tuples(st.integers(), st.text(max_size=9), st.integers(0, 99)), min_size=2, max_size=30, unique=True)
)
def test_every_sample_has_a_seed_of_its_own(keys):
    seeds = [derive_seed(*key) for key in keys]
    assert len(set(seeds)) == len(keys)
    assert all(0 <= seed < 2**56 for seed in seeds)
    assert seeds == [derive_seed(*key) for key in keys]
