"""The reasoning effort reaches every place that renders prompts."""

import datetime
from types import SimpleNamespace

import pytest
from openrlhf.datasets.prompts_dataset import PromptDataset
from transformers import AutoTokenizer

from eval.chat import Chat
from eval.problems import EvalProblem
from grpo.launch import prompt_lengths
from grpo.rollout import chat_template
from grpo.rollout.multi_turn.templates import template_for
from grpo.stack.problem import UserError
from scripts.tiny_model.tokenizer import write_tokenizer

QUESTION = {"prompt": "What is 2 + 3?", "label": "5"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The tiny model's tokenizer, whose template has the line of gpt-oss's on the effort; "low" by default."""
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    return folder


def rendered(model, effort, others=None) -> str:
    args = SimpleNamespace(input_key="prompt", label_key="label", apply_chat_template=True, reasoning_effort=effort)
    args.template_variables = others
    strategy = SimpleNamespace(args=args, is_rank_0=lambda: False)
    return PromptDataset([QUESTION], AutoTokenizer.from_pretrained(model), strategy).prompts[0]


@pytest.mark.parametrize("effort", [None, *chat_template.EFFORTS])
def test_training_and_evaluation_prompts_have_the_effort(model, effort):
    assert f"Reasoning: {effort or 'low'}\n" in rendered(model, effort)


@pytest.mark.parametrize("effort", [None, "high"])
def test_prompt_lengths_include_the_effort(model, effort):
    text = rendered(model, effort)
    tokens = AutoTokenizer.from_pretrained(model)(text, add_special_tokens=False)["input_ids"]
    assert prompt_lengths.count(str(model), [QUESTION["prompt"]], chat_template.variables(effort)) == [len(tokens)]


@pytest.mark.parametrize("effort", [None, "high"])
def test_environment_gets_the_effort_from_the_variable(model, effort, monkeypatch):
    environ: dict[str, str] = {}
    monkeypatch.setattr(chat_template.os, "environ", environ)
    chat_template.hand_on(SimpleNamespace(reasoning_effort=effort, template_variables=None))
    template = template_for(AutoTokenizer.from_pretrained(model), chat_template.from_environment(environ))
    parts = template.render([{"role": "user", "content": "2 + 3?"}], [])
    text = template.codec.decode([token for tokens, _ in template.codec.encode(parts) for token in tokens])
    assert f"Reasoning: {effort or 'low'}" in text


def test_template_that_ignores_a_variable_is_noticed(model, tmp_path):
    assert list(chat_template.unread(model, ["reasoning_effort", "no_such"])) == ["no_such"]
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert list(chat_template.unread(tmp_path, ["reasoning_effort"])) == ["reasoning_effort"]


OTHERS = '{"model_identity": "You are a {mathematician}."}'


@pytest.fixture(scope="module")
def identifying(tmp_path_factory):
    """The same with gpt-oss's own variable for who the model is."""
    folder = tmp_path_factory.mktemp("identifying")
    write_tokenizer(folder)
    template = folder / "chat_template.jinja"
    template.write_text("{{ model_identity | default('You are ChatGPT.') }}\n" + template.read_text())
    return folder


def test_other_variables_reach_training_environments_and_evaluations(identifying, monkeypatch):
    wanted = "You are a {mathematician}."
    assert rendered(identifying, None).startswith("You are ChatGPT.")
    assert rendered(identifying, "high", OTHERS).startswith(wanted)

    environ: dict[str, str] = {}
    monkeypatch.setattr(chat_template.os, "environ", environ)
    chat_template.hand_on(SimpleNamespace(reasoning_effort=None, template_variables=OTHERS))
    tokenizer = AutoTokenizer.from_pretrained(identifying)
    template = template_for(tokenizer, chat_template.from_environment(environ))
    parts = template.render([{"role": "user", "content": "2 + 3?"}], [])
    assert wanted in template.codec.decode([token for tokens, _ in template.codec.encode(parts) for token in tokens])

    chat = Chat(identifying, datetime.date(2030, 1, 2), chat_template.variables(None, OTHERS))
    problem = EvalProblem("p", "2 + 3?", "5", "sums")
    assert chat.tokenizer.decode(chat.prompt(problem)).startswith(wanted)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ("model_identity=x", "no JSON"),
        ("[1]", "no JSON object"),
        ('{"messages": []}', "must not set 'messages'"),
        ('{"reasoning_effort": "low"}', "set REASONING_EFFORT"),
    ],
)
def test_invalid_variables_are_refused(others, message):
    with pytest.raises(UserError, match=message):
        chat_template.parse(others)
