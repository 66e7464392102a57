"""The reasoning effort reaches every place that renders prompts."""

from types import SimpleNamespace

import pytest
from openrlhf.datasets.prompts_dataset import PromptDataset
from transformers import AutoTokenizer

from grpo.launch import prompt_lengths
from grpo.rollout import chat_template
from grpo.rollout.multi_turn.templates import template_for
from scripts.tiny_model.tokenizer import write_tokenizer

QUESTION = {"prompt": "What is 2 + 3?", "label": "5"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The tiny model's tokenizer, whose template has the line of gpt-oss's on the effort; "low" by default."""
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    return folder


def rendered(model, effort) -> str:
    args = SimpleNamespace(input_key="prompt", label_key="label", apply_chat_template=True, reasoning_effort=effort)
    strategy = SimpleNamespace(args=args, is_rank_0=lambda: False)
    return PromptDataset([QUESTION], AutoTokenizer.from_pretrained(model), strategy).prompts[0]


@pytest.mark.parametrize("effort", [None, *chat_template.EFFORTS])
def test_training_and_evaluation_prompts_have_the_effort(model, effort):
    assert f"Reasoning: {effort or 'low'}\n" in rendered(model, effort)


@pytest.mark.parametrize("effort", [None, "high"])
def test_prompt_lengths_include_the_effort(model, effort):
    text = rendered(model, effort)
    tokens = AutoTokenizer.from_pretrained(model)(text, add_special_tokens=False)["input_ids"]
    assert prompt_lengths.count(str(model), [QUESTION["prompt"]], effort) == [len(tokens)]


@pytest.mark.parametrize("effort", [None, "high"])
def test_environment_gets_the_effort_from_the_variable(model, effort, monkeypatch):
    environ: dict[str, str] = {}
    monkeypatch.setattr(chat_template.os, "environ", environ)
    chat_template.hand_on(SimpleNamespace(reasoning_effort=effort))
    template = template_for(AutoTokenizer.from_pretrained(model), chat_template.from_environment(environ))
    parts = template.render([{"role": "user", "content": "2 + 3?"}], [])
    text = template.codec.decode([token for tokens, _ in template.codec.encode(parts) for token in tokens])
    assert f"Reasoning: {effort or 'low'}" in text


def test_template_that_ignores_the_effort_is_noticed(model, tmp_path):
    assert chat_template.reads_effort(model)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert not chat_template.reads_effort(tmp_path)
