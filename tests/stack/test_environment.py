"""Runs in environments on the real stack: engines, executor, branches, trainer."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from .recorded import Agreement, Sample, of_the_next_token, read_samples
from .rounding import reference_model
from .runs import lines, train
from .searching_model import EXCERPT, question, teach

SHORT = {
    "NUM_ENGINES": "1",
    "ACTOR_GPUS": "1",
    "ROLLOUT_BATCH_SIZE": "8",
    "TRAIN_BATCH_SIZE": "32",
    "PROMPT_MAX_LEN": "384",
    "TURN_LIMIT": "3",
    "EVAL_AT_START": "0",
    "EVAL_STEPS": "-1",
}

# Asks again after each answer: the <|return|> that ended it is an <|end|> in the next prompt, which begins a sample.
# One rollout in eight cannot be made: an engine has 8 of each of its prompts.
INSISTENT = """
from grpo.rollout.multi_turn import environment

class Environment(environment.Environment):
    count = 0

    def __init__(self, prompt, label):
        super().__init__(prompt, label)
        Environment.count += 1
        if Environment.count % 8 == 0:
            raise RuntimeError("no room for it")

    async def reply(self, messages):
        return [{"role": "user", "content": "Are you sure?"}]

    async def score(self, messages, ending):
        return environment.Score(float(len(messages[-1]["content"]) % 2), 0.0)
"""


@pytest.mark.timeout(600)
def test_the_tiny_model_trains_on_every_sample_of_a_rollout(finished, tmp_path):
    own = tmp_path / "insistent.py"
    own.write_text(INSISTENT)
    train("--run-dir", tmp_path / "run", "--steps", 2, ENVIRONMENT=str(own), LOSS_AGGREGATION="sequence_mean", **SHORT)
    steps = lines(tmp_path / "run" / "metrics.jsonl")
    assert len(steps) == 2
    for step in steps:
        assert step["token_mismatch"] == 0 and step["branches_dropped"] == 0
        assert step["reward_missing"] == step["ended_by_error"] == 1 / 8
        assert 7 / 8 < step["turns"] <= 21 / 8 and 0 < step["branches"] <= step["turns"] - 7 / 8
        assert step["grad_norm"] > 0 and step["optimizer_steps"] == 2  # as many as without branches
    mine, others = (lines(run / "samples" / "step_1.jsonl") for run in (tmp_path / "run", finished))
    assert {row["id"] for row in mine} <= {row["id"] for row in others}, "one seed, the same prompts"


def write_questions(file, numbers):
    """One question in other words, with the answer 12."""
    rows = ({"prompt": question(number), "label": json.dumps({"answer": "12"})} for number in numbers)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.mark.timeout(600)
def test_a_model_that_searches_is_trained_by_what_it_found(tiny_model, tmp_path):
    """Real calls in real turns of real engines; the tiny model was taught to answer by 12 and by 13."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "sums.md").write_text("The sum of 3 and 9 is 12.")
    model = str(teach(tiny_model, tmp_path / "model"))
    data = {"TRAIN_DATA": write_questions(tmp_path / "train.jsonl", range(16)), "EVAL_DATA": ""}
    own = {"MODEL": model, "ENGINE_MODEL": model, "GENERATE_MAX_LEN": "48", "LOG_SAMPLES": "64", **data}
    train("--run-dir", tmp_path / "run", "--steps", 1, ENVIRONMENT="retrieval", LIBRARY=str(library), **SHORT, **own)
    (step,) = lines(tmp_path / "run" / "metrics.jsonl")
    assert step["token_mismatch"] == 0
    assert step["branches"] <= step["tool_errors"], "a turn grows its sample, but for a call that is none"
    assert step["tool_calls"] - step["tool_errors"] > 0.3
    assert 1.5 < step["turns"] <= 3 and step["environment_tokens"] > 20
    assert 0 < step["correct"] < 1 and step["grad_norm"] > 0
    samples = lines(tmp_path / "run" / "samples" / "step_1.jsonl")
    right = [sample for sample in samples if sample["correct"]]
    assert right and any(EXCERPT in sample["response"] for sample in right)
    compared = read_samples(samples, AutoTokenizer.from_pretrained(model))[:16]
    assert any(has_several_turns(sample) for sample in compared)
    agreement = Agreement.of(compared, reference_model(Path(model)))
    assert agreement.holds()
    assert agreement.notices(of_the_next_token(agreement.exact)), "the comparison proves nothing"


def has_several_turns(sample: Sample) -> bool:
    places = sample.sampled.nonzero().flatten()
    return int(places[-1] - places[0]) >= len(places)
