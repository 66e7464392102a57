"""OpenRLHF's own executor loads the combination of the user's rewards, and its batch survives a failing one."""

import asyncio
import math

import pytest
import torch
from openrlhf.utils.agent import SingleTurnAgentExecutor

from grpo.run.eval_metric import USER_REWARD
from grpo.train.rewards import complete, read_score, scalar
from tests.grpo.train.test_rewards import make_sample

RIGHT = """
import re

def reward_func(queries, prompts, labels):
    return [float(re.search(r"boxed.(\\d+)", queries[0]).group(1) == labels[0])]  # raises without a box
"""
SHORT = "def reward_func(queries, prompts, labels):\n    return -len(queries[0][len(prompts[0]):]) / 10\n"


@pytest.fixture
def executor(tmp_path, monkeypatch):
    for name, text in (("right", RIGHT), ("short", SHORT)):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setenv("GRPO_REWARD_FILES", f"{tmp_path / 'right.py'}:{tmp_path / 'short.py'}")
    monkeypatch.setenv("GRPO_REWARD_WEIGHTS", "1 0.5")
    return SingleTurnAgentExecutor([str(USER_REWARD)])


def test_rewards_of_an_engine_are_complete_in_the_batch(executor):
    responses = ["boxed{7", "boxed{8", "nothing", "boxed{7.."]

    async def fetch_rewards() -> list[dict]:
        return [(await executor._fetch_rewards_via_func(["<p>" + text], ["<p>"], ["7"]))[0] for text in responses]

    results = asyncio.run(fetch_rewards())
    expected = [1 - 0.35, 0 - 0.35, math.nan, 1 - 0.45]
    assert [result["rewards"] for result in results] == pytest.approx(expected, nan_ok=True)
    samples = []
    for result in results:
        made = make_sample(scalar(result["rewards"]))
        made.scores = torch.tensor([scalar(read_score(result))])
        made.info |= {name: torch.tensor([scalar(value)]) for name, value in result["extra_logs"].items()}
        samples.append(made)
    complete(samples, group_size=4)
    means = {name: float(torch.cat([one.info[name] for one in samples]).mean()) for name in samples[0].info}
    assert means["reward_error"] == means["reward_missing"] == 0.25
    assert means["reward.right"] == pytest.approx(2 / 3) and means["reward.short"] == pytest.approx(-0.75)
    assert "reward" in samples[2].missing and "reward.right" in samples[2].missing
