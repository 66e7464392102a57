"""The reasoning effort, the date and other variables reach every place that renders prompts."""

import datetime
from types import SimpleNamespace

import pytest
from openrlhf.datasets.prompts_dataset import PromptDataset
from transformers import AutoTokenizer
from transformers.utils import chat_template_utils

from eval.problems import Chat, EvalProblem
from grpo.hooks.flag_aliases import Arguments
from grpo.rollout import chat_template
from grpo.rollout.harmony import template_for
from grpo.stack.problem import UserError
from scripts.tiny_model.tokenizer import write_tokenizer

QUESTION = {"prompt": "What is 2 + 3?", "label": "5"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The tiny model's tokenizer, whose template has the line of gpt-oss's on the effort; "low" by default."""
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    return folder


def make_arguments(effort=None, others=None, date=None) -> SimpleNamespace:
    return SimpleNamespace(reasoning_effort=effort, template_variables=others, template_date=date)


def render_prompt(model, *variables) -> str:
    args = Arguments(
        input_key="prompt", label_key="label", apply_chat_template=True, **vars(make_arguments(*variables))
    )
    strategy = SimpleNamespace(args=args, is_rank_0=lambda: False)
    return PromptDataset([QUESTION], AutoTokenizer.from_pretrained(model), strategy).prompts[0]


@pytest.mark.parametrize("effort", [None, "low", "medium", "high"])
def test_training_and_evaluation_prompts_have_the_effort(model, effort):
    assert f"Reasoning: {effort or 'low'}\n" in render_prompt(model, effort)


def render_in_environment(model, monkeypatch, *variables) -> str:
    """What an environment's first turn has, in an engine that the driver has handed the variables on to."""
    environ: dict[str, str] = {}
    monkeypatch.setattr(chat_template.os, "environ", environ)
    chat_template.pass_to_engines(make_arguments(*variables))
    template = template_for(AutoTokenizer.from_pretrained(model), chat_template.from_environment(environ))
    return template.codec.decode(template.render_tokens([{"role": "user", "content": QUESTION["prompt"]}]))


@pytest.mark.parametrize("effort", [None, "high"])
def test_environment_gets_the_effort_from_the_variable(model, effort, monkeypatch):
    assert f"Reasoning: {effort or 'low'}" in render_in_environment(model, monkeypatch, effort)


@pytest.fixture(scope="module")
def dated_model(tmp_path_factory):
    """The same with gpt-oss's line of the date."""
    folder = tmp_path_factory.mktemp("dated")
    write_tokenizer(folder)
    template = folder / "chat_template.jinja"
    line = "<|start|>system<|message|>Current date: {{ strftime_now('%Y-%m-%d') }}<|end|>"
    template.write_text(line + template.read_text())
    return folder


class Clock(datetime.datetime):
    """The clock that chat templates see."""

    today = datetime.datetime(2029, 12, 31, 23, 59)

    @classmethod
    def now(cls, tz=None):
        return cls.today


def test_a_runs_prompts_keep_its_date_after_midnight(dated_model, monkeypatch):
    monkeypatch.setattr(chat_template_utils, "datetime", Clock)

    def render_prompts(date: str | None) -> list[str]:
        chat = Chat(dated_model, chat_template.variables(None, None, date))
        evaluated = chat.tokenizer.decode(chat.prompt(EvalProblem("p", QUESTION["prompt"], "5", "sums")))
        return [
            render_prompt(dated_model, None, None, date),
            render_in_environment(dated_model, monkeypatch, None, None, date),
            evaluated,
        ]

    before = render_prompts("2029-12-31")
    assert all("Current date: 2029-12-31<" in prompt for prompt in before) and render_prompts(None) == before
    monkeypatch.setattr(Clock, "today", Clock.today + datetime.timedelta(minutes=2))
    assert render_prompts("2029-12-31") == before
    assert all("Current date: 2030-01-01<" in prompt for prompt in render_prompts(None)), "the template sees the clock"


def test_template_that_ignores_a_variable_is_noticed(model, tmp_path):
    assert list(chat_template.find_unread(model, ["reasoning_effort", "no_such"])) == ["no_such"]
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert list(chat_template.find_unread(tmp_path, ["reasoning_effort"])) == ["reasoning_effort"]


OTHERS = '{"model_identity": "You are a {mathematician}."}'


@pytest.fixture(scope="module")
def identifying_model(tmp_path_factory):
    """The same with gpt-oss's own variable for who the model is."""
    folder = tmp_path_factory.mktemp("identifying")
    write_tokenizer(folder)
    template = folder / "chat_template.jinja"
    template.write_text("{{ model_identity | default('You are ChatGPT.') }}\n" + template.read_text())
    return folder


def test_other_variables_reach_training_environments_and_evaluations(identifying_model, monkeypatch):
    wanted = "You are a {mathematician}."
    assert render_prompt(identifying_model, None).startswith("You are ChatGPT.")
    assert render_prompt(identifying_model, "high", OTHERS).startswith(wanted)

    assert render_in_environment(identifying_model, monkeypatch, None, OTHERS).startswith(wanted)

    chat = Chat(identifying_model, chat_template.variables(None, OTHERS))
    problem = EvalProblem("p", "2 + 3?", "5", "sums")
    assert chat.tokenizer.decode(chat.prompt(problem)).startswith(wanted)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ("model_identity=x", "model_identity"),
        ("[1]", "JSON"),
        ('{"messages": []}', "messages"),
        ('{"reasoning_effort": "low"}', "--reasoning_effort"),
        ('{"strftime_now": "2030-01-02"}', "--template_date"),
    ],
)
def test_invalid_variables_are_refused(others, message):
    with pytest.raises(UserError, match=message):
        chat_template.variables(None, others)


def test_what_is_no_date_is_refused():
    with pytest.raises(UserError, match="--template_date"):
        chat_template.variables(None, None, "tomorrow")
