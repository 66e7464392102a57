"""Several environments in one run: which problem is for which, and the numbers of each."""

import asyncio
import json
from collections import Counter
from types import SimpleNamespace

import pytest

from grpo.environments.environment import Environment, SetupError, load
from grpo.environments.settings import (
    AGENT,
    Mixture,
    environments_by_prompt,
)
from grpo.rollout.harmony import template_for
from grpo.rollout.stage import Stage
from grpo.train.rewards import complete
from tests.grpo.environments.scripted import VARIABLES, ScriptedEngine, make_params
from tests.grpo.rollout.test_agent import load_actor
from tests.grpo.rollout.tokenizer import TOKENIZER
from tests.grpo.train.test_rewards import make_sample

GUESS = """
from grpo.environments import environment

class Environment(environment.Environment):
    async def reply(self, messages):
        return [{"role": "user", "content": "Sure?"}] if len(messages) < 4 else None

    async def score(self, messages, ending):
        return environment.Score(0.5, 0.0, {"length": float(len(messages))})
"""


def make_mixture(text, weights=""):
    return Mixture.from_variables({"ENVIRONMENT": text, "ENVIRONMENT_WEIGHTS": weights})


def write_data(tmp_path, *rows):
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps({"label": "42", **row}) + "\n" for row in rows))
    return file


@pytest.fixture
def two_environments(tmp_path, monkeypatch):
    """A run with single answers and an environment of a file's own, and its arguments."""
    (tmp_path / "guess.py").write_text(GUESS)
    for name, value in (VARIABLES | {"GRPO_ENVIRONMENT": f"single {tmp_path / 'guess.py'}"}).items():
        monkeypatch.setenv(name, value)
    rows = ({"prompt": "Is it 42?", "environment": "single"}, {"prompt": "Is it 7?", "environment": "guess"})
    return SimpleNamespace(
        agent_func_path=str(AGENT), prompt_data=str(write_data(tmp_path, *rows)), eval_dataset=None, input_key="prompt",
        seed=1,
    )  # fmt: skip


def test_lines_name_their_environment_and_the_others_are_shared_out_exactly(tmp_path):
    rows = [{"prompt": f"{number}?"} for number in range(72)] + [{"prompt": "named?", "environment": "retrieval"}]
    made = make_mixture("single retrieval", "3 1")
    assigned = made.assign_file(write_data(tmp_path, *rows))
    assert assigned.pop("named?") == "retrieval" and Counter(assigned.values()) == {"single": 54, "retrieval": 18}
    again = made.assign_file(write_data(tmp_path, *reversed(rows)))
    assert all(again[prompt] == name for prompt, name in assigned.items())
    assert (
        Counter(make_mixture("single retrieval").assign_file(write_data(tmp_path, *rows[:-1])).values())["single"] == 36
    )
    assert set(make_mixture("single retrieval", "0 1").assign_file(write_data(tmp_path, *rows)).values()) == {
        "retrieval"
    }


def test_names_are_short_and_a_path_may_have_blanks(tmp_path):
    assert make_mixture("single a/guess.py verifiers:owner/wordle").names == ["single", "guess", "wordle"]
    (tmp_path / "my own.py").write_text("")
    assert make_mixture(str(tmp_path / "my own.py")).names == ["my own"]


@pytest.mark.parametrize(
    ("text", "weights", "what"),
    [
        ("single single", "", "single"), ("a/guess.py b/guess.py", "", "guess"),
        *(("single retrieval", weights, f"'{weights}' for 2") for weights in ("1", "2 -1", "0 0", "1 nan", "1 much")),
    ],
)  # fmt: skip
def test_a_mixture_that_cannot_be_is_refused(text, weights, what):
    with pytest.raises(SetupError, match=what):
        make_mixture(text, weights)


def test_a_line_for_an_environment_that_the_run_has_not_is_refused(tmp_path):
    file = write_data(tmp_path, {"prompt": "1?"}, {"prompt": "2?", "environment": "python"})
    with pytest.raises(SetupError, match=r"line 2 .*'python'.*ENVIRONMENT"):
        make_mixture("single").assign_file(file)


def test_the_controller_tells_the_engines_which_environment_a_prompt_is_for(two_environments):
    stage = Stage(two_environments, "train 1")
    given = {
        prompt: stage.seed_params(make_params(), prompt).extra_args
        for prompt in environments_by_prompt(two_environments)
    }
    assert given == {"Is it 42?": {"environment": "single"}, "Is it 7?": {"environment": "guess"}}


def test_each_rollout_runs_in_its_environment_and_the_means_are_over_those_of_an_environment(two_environments):
    tokenizer, actor, samples = TOKENIZER, load_actor(), []
    thought = "<|channel|>analysis<|message|>\\boxed{7}<|end|><|start|>assistant"
    script = {
        "Is it 42?": [f"{thought}<|channel|>final<|message|>\\boxed{{42}}<|return|>"],
        "Is it 7?": ["<|channel|>final<|message|>Yes.<|return|>"],
    }
    for prompt, name in environments_by_prompt(two_environments).items():
        actor.generate = ScriptedEngine(template_for(tokenizer).codec, script[prompt]).generate
        given = make_params()
        given.extra_args = {"environment": name}
        responses = asyncio.run(actor.generate_responses(prompt, "42", given, 2000, tokenizer, 2))
        samples += [make_sample(one["reward"], one["scores"], **one["extra_logs"]) for one in responses]
    complete(samples, 2)
    info = {key: [float(sample.info[key]) for sample in samples] for key in samples[0].info}
    assert info["environment_share.single"] == [1, 1, 0, 0] and info["environment_share.guess"] == [0, 0, 1, 1]
    assert set(info["environment_score.single"]) == {1.0} and set(info["environment_score.guess"]) == {0.0}
    assert set(info["environment_reward.guess"]) == {0.5} and set(info["environment_turns.guess"]) == {2.0}
    assert set(info["environment_errors.single"]) == {0.0}
    assert info["reward"] == [1.0, 1.0, 0.5, 0.5] and info["turns"] == [1, 1, 2, 2]
    assert "environment_score.single" in samples[2].missing and "environment_score.single" not in samples[0].missing


@pytest.mark.parametrize("before", ["<|channel|>commentary", "<|channel|>final<|message|>So<|channel|>analysis"])
def test_a_single_answer_needs_a_final_message_as_in_a_run_of_single_answers(two_environments, before):
    tokenizer, actor = TOKENIZER, load_actor()
    said = f"{before}<|message|>\\boxed{{42}}<|return|>"
    actor.generate = ScriptedEngine(template_for(tokenizer).codec, [said]).generate
    (response,) = asyncio.run(actor.generate_responses("Is it 42?", "42", make_params(), 2000, tokenizer, 1))
    assert response["reward"] == 0.0 and response["extra_logs"]["answered"] == 0.0


def test_environments_are_loaded_by_name_or_file(tmp_path):
    assert issubclass(load("retrieval"), Environment)
    file = tmp_path / "file.py"
    imported = "from grpo.environments.environment import Environment"
    for text, wrong in (
        *(("x = 1", "Environment"), (imported, "no class Environment")),
        *(("import nothing_there", "file.py"), ("raise SystemExit(1)", "file.py")),
    ):
        file.write_text(text)
        with pytest.raises(SetupError, match=wrong):
            load(str(file))
    for name, wrong in (("retrieve", "retrieve"), (str(tmp_path / "gone.py"), "gone.py")):
        with pytest.raises(SetupError, match=wrong):
            load(name)
