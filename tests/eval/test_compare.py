import json
import statistics

import pytest

from eval import compare
from eval.output import Output, write_result
from eval.problems import EvalProblem
from grpo.run import estimators
from grpo.stack.problem import UserError


def evaluation(folder, right: dict[str, list[int]], **identity):
    """A finished evaluation whose samples are right or wrong as given."""
    problems = [EvalProblem(id, "prompt", "7", "sums") for id in right]
    with Output(folder, identity, {}, problems, len(next(iter(right.values()))), [1]) as output:
        for problem, number in output.missing:
            value = "7" if right[problem.id][number] else "8"
            output.append(problem, number, {"response": f"\\boxed{{{value}}}", "response_length": 3})
    write_result(folder)
    return folder


A = {f"p{n}": [1, 0, 0, 0] for n in range(8)}
B = {f"p{n}": [1, 1, 1, n % 2] for n in range(8)}


def test_the_comparison_is_paired_by_problem(tmp_path):
    a = evaluation(tmp_path / "a", A)
    b = evaluation(tmp_path / "b", dict(reversed(B.items())))
    result = compare.compare_evaluations(compare.read_grades(a), compare.read_grades(b))
    differences = [statistics.fmean(B[id]) - statistics.fmean(A[id]) for id in A]
    assert result["difference"] == pytest.approx(statistics.fmean(differences)) == pytest.approx(0.625)
    assert result["p_value"] == pytest.approx(2 / 2**8)
    assert result["ci_low"] > 0
    assert (result["n"], result["better"], result["worse"], result["only_a"]) == (8, 8, 0, 0)
    low, high = estimators.difference_interval([0.25] * 8, [statistics.fmean(B[id]) for id in A], 4)
    assert (result["ci_low"], result["ci_high"]) == pytest.approx((low, high))


def test_pairing_detects_more_than_two_separate_intervals():
    # Problems differ much, the two policies little: the intervals of both overlap, the difference is certain.
    a = {f"p{n}": [1.0] * (n % 16) + [0.0] * (16 - n % 16) for n in range(40)}
    b = {f"p{n}": [1.0] * (n % 16 + 1) + [0.0] * (15 - n % 16) for n in range(40)}
    result = compare.compare(a, b)
    assert result["p_value"] < 1e-4
    assert result["ci_low"] > 0
    (_, high_a), (low_b, _) = (estimators.interval([statistics.fmean(g) for g in side.values()], 16) for side in (a, b))
    assert low_b < high_a


def test_disjoint_problems_are_rejected_and_unshared_ones_named(tmp_path, capsys):
    a = evaluation(tmp_path / "a", A)
    other = evaluation(tmp_path / "other", {"q": [1, 1, 1, 1]})
    assert compare.main([str(a), str(other)]) == 2
    assert "no problem in common" in capsys.readouterr().err
    partly = evaluation(tmp_path / "partly", {"q": [1, 1, 1, 1], "p0": [1, 1, 1, 1]})
    assert compare.main([str(a), str(partly), "--json"]) == 0
    output = capsys.readouterr()
    assert "7 problems are only in A and 1 only in B; only the 1 common ones count" in output.err
    assert json.loads(output.out)["n"] == 1


def test_it_prints_what_it_found(tmp_path, capsys):
    a, b = evaluation(tmp_path / "a", A, temperature=1.0), evaluation(tmp_path / "b", B, temperature=0.6)
    assert compare.main([str(a), str(b)]) == 0
    printed = capsys.readouterr().out
    assert "A 0.250, B 0.875 exact match on 8 problems: 8 better in B, 0 worse" in printed
    assert "B - A = +0.625" in printed
    assert "p = 0.0078" in printed
    assert "80% power at 5% is 0." in printed
    assert "they differ in temperature" in printed


def test_different_budgets_are_reported(tmp_path, capsys):
    budgets = {"thinking_budget": 20, "answer_budget": 8, "thinking_delimiter": "harmony"}
    a, b, c = (
        evaluation(tmp_path / name, A, seed=0, **more)
        for name, more in (("a", {}), ("b", budgets), ("c", budgets | {"thinking_budget": 30}))
    )
    assert compare.main([str(a), str(b)]) == 0
    assert "they differ in thinking_budget, answer_budget, thinking_delimiter" in capsys.readouterr().out
    assert compare.main([str(b), str(c)]) == 0
    assert capsys.readouterr().out.endswith("they differ in thinking_budget\n")


def test_different_numbers_of_samples_are_reported(tmp_path, capsys):
    a, b = evaluation(tmp_path / "a", A, seed=0), evaluation(tmp_path / "b", {p: g[:1] for p, g in B.items()}, seed=1)
    assert compare.main([str(a), str(b)]) == 0
    assert "they differ in seed, n (samples per problem: 4 and 1)" in capsys.readouterr().out
    files = [str(folder / "grades.jsonl") for folder in (a, b)]
    assert compare.main(files) == 0
    assert "they differ in n (samples per problem: 4 and 1)" in capsys.readouterr().out
    assert compare.main([files[0], files[0]]) == 0
    assert "differ in" not in capsys.readouterr().out


def test_no_gain_is_detectable_near_the_maximum(tmp_path, capsys):
    a = evaluation(tmp_path / "a", {f"p{n}": [int(n % 10 > 0)] for n in range(20)})
    b = evaluation(tmp_path / "b", {f"p{n}": [int(n % 10 > 1)] for n in range(20)})
    assert compare.compare_evaluations(compare.read_grades(a), compare.read_grades(b))["detectable"] is None
    assert compare.main([str(a), str(b)]) == 0
    assert (
        "these problems cannot detect any gain with 80% power at 5%: A leaves room for 0.100" in capsys.readouterr().out
    )


def test_five_problems_are_too_few(tmp_path, capsys):
    few = {f"p{n}": [0] for n in range(5)}
    a, b = evaluation(tmp_path / "a", few), evaluation(tmp_path / "b", few)
    assert compare.main([str(a), str(b)]) == 0
    assert "cannot detect any gain" in capsys.readouterr().out


def test_unfinished_and_missing_evaluations_are_rejected(tmp_path):
    Output(tmp_path / "a", {}, {}, [EvalProblem("p", "prompt", "7", "sums")], 1, [1])
    with pytest.raises(UserError, match="not finished"):
        compare.read_grades(tmp_path / "a")
    with pytest.raises(UserError, match="is not an evaluation"):
        compare.read_grades(tmp_path)


def test_evaluations_of_a_training_run_can_be_compared(tmp_path):
    for step, correct in ((0, 0.0), (10, 1.0)):
        row = {"id": "p", "sample": 0, "correct": correct, "response": "text"}
        (tmp_path / f"eval_{step}.jsonl").write_text(json.dumps(row) + "\n")
    assert compare.main([str(tmp_path / "eval_0.jsonl"), str(tmp_path / "eval_10.jsonl")]) == 0


@pytest.mark.parametrize("subfolder", ["", "checkpoints", "checkpoints/step_10"])
def test_comparing_a_training_run_names_the_file_to_pass(tmp_path, subfolder):
    run = tmp_path / "run"
    (run / "checkpoints" / "step_10").mkdir(parents=True)
    (run / "config.json").write_text('{"flags": {}}')
    with pytest.raises(UserError, match="this training run has no evaluation so far"):
        compare.read_grades(run / subfolder)
    (run / "samples").mkdir()
    for step in (0, 10, 8):
        (run / "samples" / f"eval_{step}.jsonl").touch()
    with pytest.raises(UserError, match=f"name {run}/samples/eval_10.jsonl, the newest evaluation"):
        compare.read_grades(run / subfolder)
