"""The exercises that teach the tiny model to use tools: true, and as the environments have them."""

import asyncio
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, GptOssForCausalLM

from grpo.launch.checks.environment import check_tools
from grpo.rollout.multi_turn.conversation import play
from grpo.rollout.multi_turn.environment_loading import load
from grpo.rollout.multi_turn.retrieval import VARIABLE
from grpo.rollout.multi_turn.rollout import EnginePolicy, roll_out
from grpo.rollout.multi_turn.templates import template_for
from scripts.tiny_model import tools
from scripts.tiny_model.checkpoint import EXPERT_WEIGHTS
from scripts.tiny_model.tokenizer import write_tokenizer
from scripts.tiny_model.warm_start import tiny_config
from tests.grpo.rollout.multi_turn.scripted import LIMITS, ScriptedEngine, Spoken, make_params

ENVIRONMENTS = list(tools.ENVIRONMENTS)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(autouse=True)
def library_file(tmp_path, monkeypatch):
    file = tmp_path / "library.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in tools.library()))
    monkeypatch.setenv(VARIABLE, str(file))


def make_environment(name: str, row: dict):
    return load(name)(row["prompt"], row["label"])


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_chat_template_names_the_tools(name, tokenizer):
    environment = tools.ENVIRONMENTS[name].Environment
    problems = check_tools(environment, Path(tokenizer.name_or_path), name)
    assert not list(problems), "the launcher takes the model"
    template, user = template_for(tokenizer), [{"role": "user", "content": "How many?"}]
    without, named = (
        "".join(part.text for part in template.head(user, descriptions))
        for descriptions in ([], [tool.as_openai() for tool in environment.tools])
    )
    lines = "".join(f"\nTool: {tool.name}" for tool in environment.tools)
    assert lines and named == without.replace("final<|end|>", f"final{lines}<|end|>", 1)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_splits_share_no_problem(name):
    prompts = {split: {row["prompt"] for row in tools.rows(name, split)} for split in ("train", "eval")}
    assert (len(prompts["train"]), len(prompts["eval"])) == (tools.TRAIN, tools.EVAL)
    assert not prompts["train"] & prompts["eval"]


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize("number", [0, 77])
def test_the_tool_answers_as_the_exercise_says_and_only_the_right_habit_is_paid(name, number, tokenizer):
    row, exercise = tools.rows(name, "train")[number], tools.exercises(name, "train")[number]
    template = template_for(tokenizer)
    right = tools.FINAL.format(f"\\boxed{{{exercise.answer}}}")
    engine = ScriptedEngine(template.codec, [exercise.call, right])
    policy = EnginePolicy(template, engine, make_params(), 400)
    outcome, response = asyncio.run(roll_out(lambda: make_environment(name, row), policy, LIMITS, 4))
    assert outcome.messages[3]["content"] == exercise.output and response["reward"] == 1
    for wrong in (str(exercise.answer), f"\\boxed{{{exercise.guess}}}"):
        _, score = asyncio.run(play(lambda: make_environment(name, row), Spoken({"content": wrong}), LIMITS))
        assert score.reward == 0


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_what_is_learnt_is_what_a_rollout_samples(name, tokenizer):
    template, exercise = template_for(tokenizer), tools.exercises(name, "train")[3]
    ids, targets = tools.conversation(template, name, exercise, "tool")
    learned = tokenizer.decode([token for token in targets if token != tools.IGNORED])
    assert learned == exercise.call + tools.FINAL.format(f"\\boxed{{{exercise.answer}}}")
    assert all(target in (token, tools.IGNORED) for token, target in zip(ids, targets, strict=True))
    assert exercise.output in tokenizer.decode(ids) and "<|call|>" not in tokenizer.decode(
        tools.conversation(template, name, exercise, "guess")[0]
    )


def test_teaching_leaves_the_experts_as_they_are(tokenizer, monkeypatch):
    monkeypatch.setattr(tools, "STEPS", 2)
    model = GptOssForCausalLM._from_config(tiny_config(len(tokenizer)), attn_implementation="eager")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert len(list(tools.teach(model, tokenizer, "python"))) == 2
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed and not [name for name in changed if name.endswith(EXPERT_WEIGHTS)]
