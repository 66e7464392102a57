"""What a report says about each problem of a run."""

import json

from grpo.run.run_state import Run
from scripts.report import problems
from scripts.report.__main__ import main
from tests.scripts.report.conftest import make_sample, write_lines


def test_each_problem_has_its_history_and_the_least_solved_come_first(make_run):
    folder = make_run("a")
    for file in (folder / "samples").glob("*.jsonl"):
        file.unlink()
    write_lines(
        folder / "samples" / "step_1.jsonl",
        [make_sample(1, 1.0, 1.0), make_sample(1, 0.0, 0.0), make_sample(2, 1.0, 1.0)],
    )
    write_lines(
        folder / "samples" / "step_10.jsonl",
        [make_sample(1, 1.0, 1.0), make_sample(1, 1.0, 1.0), make_sample(3, 0.0, 0.0)],
    )
    write_lines(folder / "samples" / "eval_0.jsonl", [make_sample(7, 0.0, 0.0)])
    training, held_out = problems.tables(Run(folder))
    assert [(one.id, one.drawn) for one in training.problems] == [
        ("problem-3", [(10, "0/1")]),
        ("problem-1", [(1, "1/2"), (10, "2/2")]),
        ("problem-2", [(1, "1/1")]),
    ]
    assert training.measure == "rollouts that were right"
    assert training.problems[0].about == "What is 3 plus 1?" and training.left_out == 0
    assert [one.id for one in held_out.problems] == ["problem-7"]
    assert main([str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert "Training problems <small>3</small>" in page and "1: 1/2, 10: 2/2" in page


def test_a_reward_without_correctness_is_shown_as_its_mean(make_run):
    folder = make_run("a")
    rows = [
        {key: value for key, value in make_sample(1, 0.0, reward).items() if key != "correct"} for reward in (0.5, 2.0)
    ]
    for file in (folder / "samples").glob("*.jsonl"):
        file.unlink()
    write_lines(folder / "samples" / "step_1.jsonl", [*rows, {"prompt": "no id", "correct": 1.0}, {"id": "problem-2"}])
    [table] = problems.tables(Run(folder))
    assert [(one.id, one.drawn) for one in table.problems] == [("problem-1", [(1, "1.25")])]
    assert table.measure == "mean score"


def test_a_score_of_ones_own_reward_is_not_called_exact_match(make_run, capsys):
    folder = make_run("a")
    rows = [json.loads(line) for line in (folder / "eval.jsonl").read_text().splitlines()]
    for row in rows:
        for part in (row, *row["by_source"].values()):
            part["score"] = part.pop("exact_match")
    write_lines(folder / "eval.jsonl", rows)
    assert main([str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert "held-out score<" in page and "held-out exact match" not in page
