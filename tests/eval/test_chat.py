from pathlib import Path

import pytest

from eval.problems import Chat, EvalProblem
from grpo.stack.problem import UserError
from scripts.tiny_model.tokenizer import write_tokenizer

PROBLEM = EvalProblem("p", "What is 1 plus 2?", "3", "sums")
THINKING = "<|channel|>analysis<|message|>1 plus 2 is 3<|end|><|start|>assistant"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A folder with the tokenizer and the template of the tiny model."""
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    return folder


def test_the_prompt_is_the_models_own_chat(model):
    chat = Chat(model, {})
    text = chat.tokenizer.decode(chat.prompt(PROBLEM))
    assert text.endswith("<|start|>user<|message|>What is 1 plus 2?<|end|><|start|>assistant")
    assert "Reasoning: low" in text
    assert "Reasoning: high" in chat.tokenizer.decode(Chat(model, {"reasoning_effort": "high"}).prompt(PROBLEM))


def test_a_sample_keeps_its_special_tokens_and_counts_its_answer(model):
    chat = Chat(model, {})
    answer = "\\boxed{3}<|return|>"
    text = THINKING + "<|channel|>final<|message|>" + answer
    tokens, answer_tokens = (chat.tokenizer.encode(part, add_special_tokens=False) for part in (text, answer))
    record = chat.record(tokens, "stop", {})
    assert record["response"] == text
    assert (record["response_length"], record["answer_length"]) == (len(tokens), len(answer_tokens))
    assert record["truncated"] == 0.0
    cut = chat.record(chat.encode(THINKING), "length", {})
    assert (cut["answer_length"], cut["truncated"]) == (None, 1.0)


def test_a_model_without_tokenizer_or_template_is_refused(model, tmp_path):
    with pytest.raises(UserError, match=str(tmp_path)):
        Chat(tmp_path, {})
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match=str(tmp_path)):
        Chat(tmp_path, {})
