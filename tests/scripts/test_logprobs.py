"""The least likely tokens of a run."""

import json

import pytest

from scripts import logprobs


def make_token(engine: float, trainer: float | None) -> dict:
    return {"position": 3, "before": "1 + ", "token": "1", "after": " = 2", "engine": engine, "trainer": trainer}


@pytest.fixture
def run(make_run):
    run = make_run()
    run.write_samples(9, {"sample": 0, "least_likely_tokens": [make_token(-2.0, -5.0), make_token(-7.0, None)]})
    run.write_samples(10, {"sample": 4, "least_likely_tokens": [make_token(-9.0, -9.5)]}, {"sample": 5})
    return run


def test_the_least_likely_tokens_of_all_steps_come_first(run, capsys):
    assert logprobs.main([str(run.folder), "--json", "--count", "2"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["step"], row["sample"], row["engine"]) for row in rows] == [(10, 4, -9.0), (9, 0, -7.0)]


def test_tokens_on_which_engine_and_trainer_differ_are_marked_and_can_come_first(run, capsys):
    assert logprobs.main([str(run.folder), "--apart"]) == 0
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("!") and "-5.000" in first and '"1 + >>1<< = 2"' in first
    assert not second.startswith("!")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--step", "11"], "step 11: name one of 9, 10"),
        (["--count", "0"], "--count is 0: give 1 or more"),
    ],
)
def test_unavailable_log_probs_are_rejected_with_a_remedy(run, capsys, options, message):
    assert logprobs.main([str(run.folder), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_run_without_samples_is_refused(make_run, capsys):
    assert logprobs.main([str(make_run().folder)]) == 2
    assert "samples" in capsys.readouterr().err
