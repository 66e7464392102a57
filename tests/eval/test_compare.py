import json
import statistics

import pytest

from eval import compare
from eval.output import Output, write_result
from eval.problems import EvalProblem
from grpo.run import estimators
from grpo.stack.problem import UserError


def write_evaluation(folder, right: dict[str, list[int]], **identity):
    """A finished evaluation whose samples are right or wrong as given."""
    problems = [EvalProblem(id, "prompt", "7", "sums") for id in right]
    with Output(folder, identity, {}, problems, len(next(iter(right.values()))), [1]) as output:
        for problem, number in output.missing:
            value = "7" if right[problem.id][number] else "8"
            output.append(problem, number, {"response": f"\\boxed{{{value}}}", "response_length": 3})
    write_result(folder)
    return folder


def run_compare(capsys, a, b, *options, code=0):
    """What the command prints of two evaluations: to stdout, and to stderr."""
    assert compare.main([str(a), str(b), *options]) == code
    return capsys.readouterr()


A = {f"p{n}": [1, 0, 0, 0] for n in range(8)}
B = {f"p{n}": [1, 1, 1, n % 2] for n in range(8)}


def test_the_comparison_is_paired_by_problem(tmp_path, capsys):
    a = write_evaluation(tmp_path / "a", A, temperature=1.0)
    b = write_evaluation(tmp_path / "b", dict(reversed(B.items())), temperature=0.6)
    text = run_compare(capsys, a, b).out
    assert "A 0.250, B 0.875; B is better on 8 and worse on 0" in text and "B - A = +0.625" in text
    assert "p = 0.0078" in text and "settings that differ: temperature" in text
    result = compare.compare_evaluations(compare.read_grades(a), compare.read_grades(b))
    differences = [statistics.fmean(B[id]) - statistics.fmean(A[id]) for id in A]
    assert result["difference"] == pytest.approx(statistics.fmean(differences)) == pytest.approx(0.625)
    assert result["p_value"] == pytest.approx(2 / 2**8)
    assert result["ci_low"] > 0
    assert (result["n"], result["better"], result["worse"], result["only_a"]) == (8, 8, 0, 0)
    low, high = estimators.difference_interval([0.25] * 8, [statistics.fmean(B[id]) for id in A], 4)
    assert (result["ci_low"], result["ci_high"]) == pytest.approx((low, high))


def test_disjoint_problems_are_rejected_and_unshared_ones_named(tmp_path, capsys):
    a = write_evaluation(tmp_path / "a", A)
    other = write_evaluation(tmp_path / "other", {"q": [1, 1, 1, 1]})
    assert "no problem in common" in run_compare(capsys, a, other, code=2).err
    partly = write_evaluation(tmp_path / "partly", {"q": [1, 1, 1, 1], "p0": [1, 1, 1, 1]})
    output = run_compare(capsys, a, partly, "--json")
    assert "7 problems are only in A" in output.err
    assert json.loads(output.out)["n"] == 1


def test_another_adapter_is_told_from_none(tmp_path, capsys):
    adapters = {"a": (None, None), "b": ("12ab", 2.0), "c": ("34cd", 1.0)}
    a, b, c = (
        write_evaluation(tmp_path / name, A, adapter_sha256=digest, adapter_scale=scale)
        for name, (digest, scale) in adapters.items()
    )
    assert run_compare(capsys, a, b).out.endswith("settings that differ: adapter (A has none)\n")
    assert run_compare(capsys, b, c).out.endswith("settings that differ: adapter\n")


def test_different_numbers_of_samples_are_reported(tmp_path, capsys):
    a, b = (
        write_evaluation(tmp_path / "a", A, seed=0),
        write_evaluation(tmp_path / "b", {p: g[:1] for p, g in B.items()}, seed=1),
    )
    assert "seed, n (samples per problem: 4 and 1)" in run_compare(capsys, a, b).out
    files = [folder / "grades.jsonl" for folder in (a, b)]
    assert "settings that differ: n (samples per problem: 4 and 1)" in run_compare(capsys, *files).out
    assert "differ in" not in run_compare(capsys, files[0], files[0]).out


def test_no_gain_is_detectable_near_the_maximum(tmp_path, capsys):
    a = write_evaluation(tmp_path / "a", {f"p{n}": [int(n % 10 > 0)] for n in range(20)})
    b = write_evaluation(tmp_path / "b", {f"p{n}": [int(n % 10 > 1)] for n in range(20)})
    assert json.loads(run_compare(capsys, a, b, "--json").out)["detectable"] is None
    assert "largest possible gain, 0.100," in run_compare(capsys, a, b).out
    few = write_evaluation(tmp_path / "few", {f"p{n}": [0] for n in range(5)})
    assert "would not be detected" in run_compare(capsys, few, few).out, "five problems are too few"


def test_unfinished_and_missing_evaluations_are_rejected(tmp_path):
    Output(tmp_path / "a", {}, {}, [EvalProblem("p", "prompt", "7", "sums")], 1, [1])
    with pytest.raises(UserError, match=str(tmp_path / "a")):
        compare.read_grades(tmp_path / "a")
    with pytest.raises(UserError, match=str(tmp_path)):
        compare.read_grades(tmp_path)


def test_comparing_a_training_run_names_the_file_to_pass(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text('{"flags": {}}')
    with pytest.raises(UserError, match=str(run)):
        compare.read_grades(run)
    (run / "samples").mkdir()
    for step in (0, 10, 8):
        (run / "samples" / f"eval_{step}.jsonl").touch()
    with pytest.raises(UserError, match=f"{run}/samples/eval_10.jsonl"):
        compare.read_grades(run)


def write_run(folder, step, rows, **flags):
    """A run directory with one evaluation."""
    (folder / "samples").mkdir(parents=True, exist_ok=True)
    (folder / "command.sh").touch()
    (folder / "config.json").write_text(json.dumps({"flags": flags, "given": flags}))
    file = folder / "samples" / f"eval_{step}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def make_rows(grades):
    return [{"id": problem, "correct": grade} for problem, all_ in grades.items() for grade in all_]


def test_the_settings_of_two_runs_are_compared(tmp_path, capsys):
    a = write_run(tmp_path / "a", 10, make_rows(A), actor_learning_rate=1e-6, seed=1, run_dir="a")
    b = write_run(tmp_path / "b", 10, make_rows(B), actor_learning_rate=2e-6, seed=1, run_dir="b")
    text = run_compare(capsys, a, b).out
    assert "  actor_learning_rate: 1e-06 in A, 2e-06 in B" in text and "seed" not in text and "run_dir" not in text
    c = write_run(tmp_path / "a", 20, make_rows(B), actor_learning_rate=1e-6, seed=1, run_dir="a")
    assert " in A, " not in run_compare(capsys, a, c).out, "one run has one configuration"


def test_ungraded_problems_are_stated(tmp_path, capsys):
    partly = A | {"p0": [None] * 4, "p1": [None] * 4}
    a, b = write_run(tmp_path / "a", 0, make_rows(partly)), write_run(tmp_path / "a", 10, make_rows(B))
    output = run_compare(capsys, a, b, "--json")
    assert "in A, 6 of 8 problems were graded" in output.err and "only the 6 common ones count" in output.err
    result = json.loads(output.out)
    assert (result["n"], result["graded_a"], result["graded_b"]) == (6, [6, 8], [8, 8])


def test_scores_of_a_reward_are_compared_with_scores_only(tmp_path, capsys):
    scores = [{"id": f"p{n}", "measure": "score", "score": 10.0 * n, "correct": 0.0} for n in range(8)]
    higher = [row | {"score": row["score"] + 1 + n % 2} for n, row in enumerate(scores)]
    a, b = write_run(tmp_path / "a", 0, scores), write_run(tmp_path / "a", 10, higher)
    text = run_compare(capsys, a, b).out
    assert "score on 8 problems: A 35.000, B 36.500" in text and "exact match" not in text
    assert "B - A = +1.500" in text
    half = 2.364624 * statistics.stdev([1, 2] * 4) / 8**0.5  # Student's t, 7 degrees of freedom, from a table
    assert f"[{1.5 - half:+.3f}, {1.5 + half:+.3f}]" in text
    gain = half * (1 + 0.896030 / 2.364624) + 1 / 8  # a score changes by at least 1
    assert f"80% power at 5%: {gain:.3f}" in text
    assert "smallest detectable gain: unknown" in run_compare(capsys, a, a).out
    said = run_compare(capsys, a, write_run(tmp_path / "c", 0, make_rows(A)), code=2).err
    assert "A measures the score and B the exact match" in said


@pytest.mark.parametrize(("few", "many", "warned"), [(1, 8, True), (2, 16, True), (1, 4, False), (4, 16, False)])
def test_very_unequal_numbers_of_samples_are_warned_of(tmp_path, capsys, few, many, warned):
    a = write_run(tmp_path / "a", 0, make_rows({f"p{n}": [float(n % 3 == 0)] * few for n in range(18)}))
    b = write_run(tmp_path / "a", 1, make_rows({f"p{n}": [float(n % 2 == 0)] * many for n in range(18)}))
    assert (f"evaluate both with {many}" in run_compare(capsys, a, b).err) == warned
