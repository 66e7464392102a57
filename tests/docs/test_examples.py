"""The examples of the documentation work: a reward and an environment of one's own."""

import asyncio
import json
import shlex
from pathlib import Path

import pytest

from grpo.environments.conversation import hold_conversation, score_conversation
from grpo.environments.environment import load
from grpo.launch.checks.reward import try_file
from tests.docs.pages import get_page
from tests.grpo.environments.scripted import LIMITS, Spoken, make_call
from tests.grpo.launch.recipe import ROOT
from tests.grpo.launch.recipe import call as launch


def write_example(page: str, file: Path) -> Path:
    """Write the first block of Python of a page."""
    code = next(block for language, block in get_page(page).blocks if language == "python")
    file.parent.mkdir(exist_ok=True)
    file.write_text(code)
    return file


def test_the_reward_pays_right_answers_and_no_others(tmp_path: Path) -> None:
    file = write_example("docs/reward.md", tmp_path / "mine.py")
    prompt = "<|start|>user<|message|>\\boxed{7}?<|end|><|start|>assistant"
    for response, reward in (("It is 42.<|return|>", 1.0), ("42 or \\boxed{43}<|return|>", 0.0), ("No.", 0.0)):
        sample = {"query": prompt + response, "prompt": prompt, "label": "42"}
        assert try_file(file, sample)["reward"] == reward


def test_the_environment_pays_a_policy_that_searches_and_answers(tmp_path: Path) -> None:
    load_environment = load(str(write_example("docs/environments.md", tmp_path / "guess.py")))

    def play(*turns: object) -> tuple[str, float, list[str]]:
        """Let a policy that guesses numbers, then answers with a text, play against the number 7."""
        said = [
            {"content": turn} if isinstance(turn, str) else {"tool_calls": [make_call("guess", {"number": turn})]}
            for turn in turns
        ]
        environment = load_environment("Find a number from 1 to 9.", "7")
        outcome = asyncio.run(hold_conversation(environment, Spoken(*said), LIMITS))
        score = asyncio.run(score_conversation(environment, outcome, 60))
        heard = [message["content"] for message in outcome.messages if message["role"] == "tool"]
        return outcome.ending, score.reward, heard

    assert play(5, 8, 7, "7") == ("done", 1.0, ["higher", "lower", "correct"])
    assert play("8")[:2] == play("seven")[:2] == ("done", 0.0)
    assert play(5)[:2] == ("turns", 0.0)


@pytest.mark.timeout(900)  # it may make the tiny model first
def test_the_command_for_an_environment_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = get_page("docs/environments.md").blocks
    [command] = [line for _, block in blocks for line in block.splitlines() if line.startswith("ENVIRONMENT=my/")]
    [rows] = [block.splitlines() for language, block in blocks if language == "json"]
    write_example("docs/environments.md", tmp_path / "my" / "guess.py")
    more = [json.dumps({**json.loads(rows[0]), "prompt": f"Find a number from 1 to {n}."}) for n in range(50, 66)]
    (tmp_path / "train.jsonl").write_text("\n".join(more))
    (tmp_path / "eval.jsonl").write_text("\n".join(rows))
    *variables, program, option = shlex.split(command)
    assert program == "./train_grpo.sh"
    monkeypatch.chdir(tmp_path)
    done = launch(ROOT, option, "--check", **dict(each.split("=") for each in variables))
    assert done.returncode == 0, done.stderr
