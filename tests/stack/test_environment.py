"""A run in an environment of one's own on the real stack: engines, executor, branches, trainer."""

import pytest

from .runs import read_lines, train

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
def test_the_tiny_model_trains_on_every_sample_of_a_rollout(finished_run, tmp_path):
    own = tmp_path / "insistent.py"
    own.write_text(INSISTENT)
    train("--run-dir", tmp_path / "run", "--steps", 2, ENVIRONMENT=str(own), LOSS_AGGREGATION="sequence_mean", **SHORT)
    steps = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert len(steps) == 2
    for step in steps:
        assert step["token_mismatch"] == 0 and step["branches_dropped"] == 0
        assert step["reward_missing"] == step["ended_by_error"] == 1 / 8
        assert 7 / 8 < step["turns"] <= 21 / 8 and 0 < step["branches"] <= step["turns"] - 7 / 8
        assert step["grad_norm"] > 0 and step["optimizer_steps"] == 2  # as many as without branches
    mine, others = (read_lines(run / "samples" / "step_1.jsonl") for run in (tmp_path / "run", finished_run))
    assert {row["id"] for row in mine} <= {row["id"] for row in others}, "one seed, the same prompts"
