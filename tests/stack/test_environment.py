"""A run in an environment on the real stack: engines, executor, branches, trainer."""

from .runs import lines, train


def test_the_tiny_model_trains_in_the_retrieval_environment(tiny_model, tmp_path):
    library = tmp_path / "library"
    library.mkdir()
    (library / "sums.md").write_text("The sum of 3 and 9 is 12.")
    run_dir = tmp_path / "run"
    variables = {"PROMPT_MAX_LEN": "384", "TURN_LIMIT": "3", "EVAL_AT_START": "0", "EVAL_STEPS": "-1"}
    train("--run-dir", run_dir, "--steps", 2, ENVIRONMENT="retrieval", LIBRARY=str(library), **variables)
    steps = lines(run_dir / "metrics.jsonl")
    assert len(steps) == 2
    for step in steps:
        assert step["token_mismatch"] == 0 and step["turns"] >= 1 and step["environment_tokens"] >= 0
        assert step["grad_norm"] >= 0 and step["logprob_diff_mean"] < 0.05
    assert all("correct" in sample for sample in lines(run_dir / "samples" / "step_1.jsonl"))
