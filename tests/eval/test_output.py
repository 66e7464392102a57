import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.output import GRADES, RESULT, SAMPLES, Output, read_config, write_result
from eval.problems import EvalProblem
from grpo.stack.json_files import read_rows as rows
from grpo.stack.problem import UserError

IDENTITY = {"temperature": 1.0, "date": "2030-01-01"}


def open_output(folder, problems, n=2, ks=(1,), **identity) -> Output:
    return Output(folder, IDENTITY | identity, {"model": "m"}, problems, n, ks)


def make_answer(problem: EvalProblem, number: int) -> dict:
    """Responses as a model might write them; samples with even numbers are right."""
    value = problem.label if number % 2 == 0 else "0"
    return {"seed": number, "response": f"line\u2028line \\boxed{{{value}}}", "response_length": 9, "answer_length": 3}


def fill(output: Output, count: int | None = None) -> None:
    with output:
        for problem, number in output.missing[:count]:
            output.append(problem, number, make_answer(problem, number))


@given(st.data())
def test_interrupted_evaluation_continues_from_any_point(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cut")
    problems = [EvalProblem(f"p{number}", "prompt", str(number), "sums") for number in range(3)]
    fill(open_output(folder, problems))
    whole = (folder / SAMPLES).read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    (folder / SAMPLES).write_bytes(whole[:cut])
    output = open_output(folder, problems)
    assert len(output.missing) == 6 - whole[:cut].count(b"\n")
    fill(output)
    assert (folder / SAMPLES).read_bytes() == whole
    assert write_result(folder)["samples"] == 6


def test_existing_samples_are_reused_for_more_samples_or_problems(tmp_path, problems):
    fill(open_output(tmp_path, problems[:2], n=2))
    write_result(tmp_path)
    output = open_output(tmp_path, problems, n=3, ks=(1, 3))
    assert {(problem.id, number) for problem, number in output.missing} == {
        ("p0", 2), ("p1", 2), ("p2", 0), ("p2", 1), ("p2", 2),
    }  # fmt: skip
    assert not (tmp_path / RESULT).exists(), "a result of fewer samples stands beside the new config"
    fill(output)
    assert write_result(tmp_path)["pass_at_k"].keys() == {"1", "3"}
    assert not open_output(tmp_path, problems[:1], n=1).missing
    assert write_result(tmp_path)["samples"] == 1


def test_another_configuration_is_refused(tmp_path, problems):
    fill(open_output(tmp_path, problems), count=1)
    with pytest.raises(UserError, match="temperature"):
        open_output(tmp_path, problems, temperature=0.6)
    with pytest.raises(UserError, match="top_p"):
        open_output(tmp_path, problems, top_p=1)


def test_folder_without_samples_accepts_a_new_configuration(tmp_path, problems):
    with open_output(tmp_path, problems):
        pass
    (tmp_path / SAMPLES).write_bytes(b'{"id": "p0", "samp')  # killed in its first line
    fill(open_output(tmp_path, problems, temperature=0.6))
    assert write_result(tmp_path)["samples"] == 6 and read_config(tmp_path)["identity"]["temperature"] == 0.6


def test_a_config_of_other_types_is_rejected(tmp_path, problems):
    (tmp_path / "config.json").write_text('{"problems": [], "n": 1, "k": [1], "identity": []}')
    with pytest.raises(UserError, match=str(tmp_path)):
        read_config(tmp_path)


def test_unrelated_folder_is_rejected(tmp_path, problems):
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(UserError, match=str(tmp_path)):
        open_output(tmp_path, problems)
    with pytest.raises(UserError, match=str(tmp_path)):
        read_config(tmp_path)
    with pytest.raises(UserError, match=r"thesis\.txt"):
        open_output(tmp_path / "thesis.txt", problems)


def test_two_evaluations_cannot_write_to_one_folder(tmp_path, problems):
    output = open_output(tmp_path, problems)
    code = (
        "from eval.output import Output; import sys; Output(__import__('pathlib').Path(sys.argv[1]), {}, {}, [], 1, [])"
    )
    (tmp_path / "config.json").unlink()
    second = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert "another evaluation is writing" in second.stderr
    del output


def test_samples_grades_and_result_are_written_and_regrading_needs_only_the_samples(tmp_path, problems):
    (tmp_path / SAMPLES).touch()
    (tmp_path / ".config.json.123").write_text("{")  # a start that was killed before its config
    fill(open_output(tmp_path, problems))
    result = write_result(tmp_path)
    assert result == json.loads((tmp_path / RESULT).read_text())
    assert (result["exact_match"], result["n"], result["samples"]) == (0.5, 3, 6)
    wanted = [(f"p{problem}", sample) for problem in range(3) for sample in range(2)]
    assert [(grade["id"], grade["sample"]) for grade in rows(tmp_path / GRADES)] == wanted
    expected = (tmp_path / RESULT).read_text(), (tmp_path / GRADES).read_text()
    for name in (RESULT, GRADES):
        (tmp_path / name).unlink()
    assert write_result(tmp_path)
    assert ((tmp_path / RESULT).read_text(), (tmp_path / GRADES).read_text()) == expected
