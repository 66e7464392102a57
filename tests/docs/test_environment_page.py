"""The environment that the documentation shows works, in the machinery that training uses."""

import asyncio
import json
import shlex
from pathlib import Path

import pytest

from grpo.environments.conversation import Outcome, hold_conversation, score_conversation
from grpo.environments.environment import Score
from grpo.environments.loading import load
from tests.docs.pages import get_page
from tests.grpo.environments.scripted import LIMITS, Spoken, make_call
from tests.grpo.launch.recipe import ROOT
from tests.grpo.launch.recipe import call as launch


def read_environment_code() -> str:
    """The one block of Python of the page."""
    (code,) = [block for language, block in get_page("docs/environments.md").blocks if language == "python"]
    return code


def play_turns(folder: Path, *turns: dict) -> tuple[Outcome, Score]:
    """Load the example as a run loads it, and let a policy of given turns play it; the number is 7."""
    file = folder / "guess.py"
    file.write_text(read_environment_code())
    environment = load(str(file))("Find a number from 1 to 9.", "7")
    outcome = asyncio.run(hold_conversation(environment, Spoken(*turns), LIMITS))
    return outcome, asyncio.run(score_conversation(environment, outcome, 60))


def make_guess(number: object) -> dict:
    return {"tool_calls": [make_call("guess", {"number": number})]}


@pytest.mark.parametrize(
    ("turns", "ending", "reward"),
    [
        ((make_guess(5), make_guess(8), make_guess(7), {"content": "7"}), "done", 1.0),
        (({"content": "8"},), "done", 0.0),
        (({"content": "seven"},), "done", 0.0),
        ((make_guess(5),), "turns", 0.0),
    ],
)
def test_a_policy_that_searches_and_answers_is_paid(tmp_path: Path, turns: tuple, ending: str, reward: float) -> None:
    outcome, score = play_turns(tmp_path, *turns)
    assert (outcome.ending, outcome.fault, score.reward) == (ending, "", reward)
    if reward:
        heard = [message["content"] for message in outcome.messages if message["role"] == "tool"]
        assert heard == ["higher", "lower", "correct"] and outcome.turns == 4
        assert score.score == 1.0 and score.logs["messages"] == len(outcome.messages)


def test_invalid_tool_call_becomes_an_observation(tmp_path: Path) -> None:
    outcome, score = play_turns(tmp_path, make_guess("seven"), {"content": "7"})
    heard = next(message["content"] for message in outcome.messages if message["role"] == "tool")
    assert "whole number" in heard and outcome.errors == 1 and score.reward == 1.0


@pytest.mark.timeout(900)  # it may make the tiny model first
def test_the_command_for_a_file_of_ones_own_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = get_page("docs/environments.md").blocks
    (command,) = [line for _, block in blocks for line in block.splitlines() if line.startswith("ENVIRONMENT=my/")]
    (rows,) = [block.splitlines() for language, block in blocks if language == "json"]
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "guess.py").write_text(read_environment_code())
    more = [json.dumps({**json.loads(rows[0]), "prompt": f"Find a number from 1 to {n}."}) for n in range(50, 66)]
    (tmp_path / "train.jsonl").write_text("\n".join(more))
    (tmp_path / "eval.jsonl").write_text("\n".join(rows))
    *variables, program, option = shlex.split(command)
    assert program == "./train_grpo.sh"
    monkeypatch.chdir(tmp_path)
    done = launch(ROOT, option, "--check", **dict(each.split("=") for each in variables))
    assert done.returncode == 0 and "ready: " in done.stdout, done.stderr
