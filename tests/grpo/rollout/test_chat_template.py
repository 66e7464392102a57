"""The reasoning effort, the date and other variables reach every place that renders prompts."""

import datetime
import json
from types import SimpleNamespace

import pytest
from openrlhf.datasets.prompts_dataset import PromptDataset
from transformers import AutoTokenizer
from transformers.utils import chat_template_utils

from eval.problems import Chat
from grpo.hooks.flag_aliases import Arguments
from grpo.rollout import chat_template
from grpo.rollout.harmony import template_for
from grpo.stack.problem import UserError
from scripts.tiny_model.tokenizer import write_tokenizer

QUESTION = {"prompt": "What is 2 + 3?", "label": "5"}
# gpt-oss's own lines on who it is and on the date; the tiny model's template has that on the effort
LINES = (
    "{{ model_identity | default('You are ChatGPT.') }}\n"
    "<|start|>system<|message|>Current date: {{ strftime_now('%Y-%m-%d') }}<|end|>"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    template = folder / "chat_template.jinja"
    template.write_text(LINES + template.read_text())
    return folder


class Clock(datetime.datetime):
    """The clock that chat templates see."""

    today = datetime.datetime(2029, 12, 31, 23, 59)

    @classmethod
    def now(cls, tz=None):
        return cls.today


def render_everywhere(model, monkeypatch, effort=None, others=None, date=None) -> str:
    """Return the prompt of training, which an environment's first turn and an evaluation must have as well."""
    args = Arguments(
        input_key="prompt", label_key="label", apply_chat_template=True,
        reasoning_effort=effort, template_variables=others, template_date=date,
    )  # fmt: skip
    strategy = SimpleNamespace(args=args, is_rank_0=lambda: False)
    prompt = PromptDataset([QUESTION], AutoTokenizer.from_pretrained(model), strategy).prompts[0]
    environ: dict[str, str] = {}  # an engine's, as the driver makes it
    monkeypatch.setattr(chat_template.os, "environ", environ)
    chat_template.pass_to_engines(args)
    template = template_for(AutoTokenizer.from_pretrained(model), chat_template.from_environment(environ))
    turn = template.codec.decode(template.render_tokens([{"role": "user", "content": QUESTION["prompt"]}]))
    chat = Chat(model, chat_template.variables(effort, others, date))
    evaluated = chat.tokenizer.decode(chat.render(QUESTION["prompt"]))
    assert prompt == turn == evaluated
    return prompt


@pytest.mark.parametrize("effort", [None, "low", "medium", "high"])
def test_prompts_have_the_effort(model, monkeypatch, effort):
    assert f"Reasoning: {effort or 'low'}\n" in render_everywhere(model, monkeypatch, effort)


def test_a_runs_prompts_keep_its_date_after_midnight(model, monkeypatch):
    monkeypatch.setattr(chat_template_utils, "datetime", Clock)
    before = render_everywhere(model, monkeypatch, date="2029-12-31")
    assert "Current date: 2029-12-31<" in before and render_everywhere(model, monkeypatch) == before
    monkeypatch.setattr(Clock, "today", Clock.today + datetime.timedelta(minutes=2))
    assert render_everywhere(model, monkeypatch, date="2029-12-31") == before
    assert "Current date: 2030-01-01<" in render_everywhere(model, monkeypatch), "the template sees the clock"


def test_prompts_have_other_variables(model, monkeypatch):
    identity = "You are a {mathematician}."
    assert render_everywhere(model, monkeypatch).startswith("You are ChatGPT.")
    others = json.dumps({"model_identity": identity})
    assert render_everywhere(model, monkeypatch, "high", others).startswith(identity)


def test_a_template_that_ignores_a_variable_is_noticed(model):
    assert list(chat_template.find_unread(model, ["reasoning_effort", "no_such"])) == ["no_such"]


@pytest.mark.parametrize(
    ("others", "date", "named"),
    [
        ("model_identity=x", None, "model_identity"),
        ("[1]", None, "JSON"),
        ('{"messages": []}', None, "messages"),
        ('{"reasoning_effort": "low"}', None, "--reasoning_effort"),
        ('{"strftime_now": "2030-01-02"}', None, "--template_date"),
        (None, "tomorrow", "--template_date"),
    ],
)
def test_invalid_variables_are_refused(others, date, named):
    with pytest.raises(UserError, match=named):
        chat_template.variables(None, others, date)
