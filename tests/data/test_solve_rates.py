"""Training problems chosen by the rate at which an evaluation solved them, on files as eval.evaluate writes them."""

import json

import pytest

from data.prepare import Options, Source, main, prepare
from eval.output import Output, write_result
from eval.problems import read_problems
from grpo.stack.problem import UserError
from tests.data.conftest import make_math_rows, read_split, write_rows

N = 10


@pytest.fixture
def evaluated_problems(tmp_path):
    """Problems of levels 4 and 5, prepared, and an evaluation of those to train on: number i has i of 10 right."""
    source = write_rows(tmp_path / "own.jsonl", make_math_rows(14))
    prepare([Source(str(source))], tmp_path / "all")
    problems = read_problems(tmp_path / "all" / "train.jsonl")
    assert len(problems) == 11
    with Output(tmp_path / "base", {}, {}, problems, N, [1]) as output:
        for problem, number in output.missing:
            is_right = number < problems.index(problem)
            output.append(problem, number, {"response": f"\\boxed{{{problem.label if is_right else 'x+1'}}}"})
    write_result(tmp_path / "base")
    return source, tmp_path / "base", [problem.id for problem in problems]


def test_problems_between_the_rates_are_kept_and_eval_is_untouched(evaluated_problems, tmp_path):
    source, base, ids = evaluated_problems
    card = prepare([Source(str(source))], tmp_path / "chosen", Options(solve_rates=base, between=(0.2, 0.7)))
    assert {record["id"] for record in read_split(tmp_path / "chosen", "train")} == set(ids[2:8])
    assert read_split(tmp_path / "chosen", "eval") == read_split(tmp_path / "all", "eval")
    assert card["left_out"] == {"solve rate below 0.2": 2, "solve rate above 0.7": 3}
    levels = card["solve_rates"]["by_level"]
    assert set(levels) == {"level 4", "level 5"}
    assert sum(row["problems"] for row in levels.values()) == 11 and sum(row["kept"] for row in levels.values()) == 6
    level_of = {f"Halve {row['problem'][6:]}": row["level"] for row in make_math_rows(14)}
    rates = [
        number / N
        for number, record in enumerate(read_split(tmp_path / "all", "train"))
        if level_of[record["prompt"].partition("\n")[0]] == 4
    ]
    assert levels["level 4"]["solve_rate"] == pytest.approx(sum(rates) / len(rates), abs=1e-3)


def test_it_is_printed_by_level(evaluated_problems, tmp_path, capsys):
    source, base, _ = evaluated_problems
    words = ["--source", str(source), "--out", str(tmp_path / "out"), "--solve-rates", str(base)]
    assert main([*words, "--between", "0.1", "0.9"]) == 0
    printed = capsys.readouterr().out
    assert "level 4: mean solve rate " in printed and "left out (solve rate below 0.1): 1" in printed
    assert main(words) == 0 and capsys.readouterr().out == printed, "0.1 and 0.9 are the defaults"
    with pytest.raises(SystemExit):
        main([*words[:4], "--between", "0.1", "0.9"])
    assert "--between needs --solve-rates" in capsys.readouterr().err


def test_problems_without_a_rate_are_left_out_and_counted(evaluated_problems, tmp_path):
    source, base, _ = evaluated_problems
    rows = [*make_math_rows(14), {"problem": "Something new, never measured before.", "answer": "1"}]
    write_rows(source, rows)
    sources = [Source(str(source), "train"), Source(str(tmp_path / "all" / "eval.jsonl"), "eval")]
    card = prepare(sources, tmp_path / "out", Options(solve_rates=base, decontaminate=True))
    assert card["left_out"]["without a solve rate"] == 1 + 3


@pytest.mark.parametrize(
    ("between", "name", "message"),
    [
        ((0.9, 0.1), "base", "--between is 0.9 0.1"),
        ((0.1, 2.0), "base", "--between is 0.1 2"),
        ((0.1, 0.9), "none", "cannot be read"),
        ((0.1, 0.9), "all/train.jsonl", "has no grades"),
        ((0.1, 0.9), "other.jsonl", "none of the 11 training problems"),
    ],
)
def test_what_cannot_be_chosen_by_is_refused(evaluated_problems, tmp_path, between, name, message):
    (tmp_path / "other.jsonl").write_text(json.dumps({"id": "other", "correct": 1.0}) + "\n")
    options = Options(solve_rates=tmp_path / name, between=between)
    with pytest.raises(UserError, match=message):
        prepare([Source(str(evaluated_problems[0]))], tmp_path / "out", options)


def test_levels_are_chosen(tmp_path, capsys):
    rows = [{**row, "level": 1 + number % 5} for number, row in enumerate(make_math_rows(25))]
    source = str(write_rows(tmp_path / "own.jsonl", rows))
    assert main(["--source", source, "--out", str(tmp_path / "out"), "--levels", "2", "3"]) == 0
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert {level for file in card["files"].values() for level in file["level"]} == {"2", "3"}
    assert "left out (another level than 2 and 3): 15" in capsys.readouterr().out
