import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import prepare
from eval.problems import Chat, derive_seed, read_problems
from grpo.stack.problem import UserError
from scripts.tiny_model.tokenizer import write_tokenizer


def write(file, *rows):
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return file


def test_prepared_files_are_read_in_their_order(tmp_path):
    prepare.main(["--source", "synthetic", "--train-count", "5", "--eval-count", "7", "--out", str(tmp_path)])
    problems = read_problems(tmp_path / "eval.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "eval.jsonl").read_text().splitlines()]
    assert [problem.id for problem in problems] == [row["id"] for row in rows]
    assert [problem.label for problem in problems] == [json.loads(row["label"])["answer"] for row in rows]
    assert {problem.datasource for problem in problems} == {"synthetic"}


GOOD = {"prompt": "p", "label": "1", "id": "a"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["no json"], "line 1"), ([GOOD, "[1]"], "line 2"), ([{"label": "1", "id": "a"}], "prompt"), ([], "data.jsonl"),
        ([{"prompt": "p", "id": "a"}], "line 1"), ([{"prompt": "p", "label": "1"}], "'id'"), ([GOOD, GOOD], "line 2"),
    ],
)  # fmt: skip
def test_errors_name_their_line(tmp_path, rows, message):
    with pytest.raises(UserError, match=message):
        read_problems(write(tmp_path / "data.jsonl", *rows))


HELLO = {"role": "assistant", "content": "Welcome."}
ASKED = {"role": "user", "content": "1 + 1?"}


@pytest.mark.parametrize(
    ("chat", "said"),
    [
        ([HELLO, ASKED], "'assistant' in message 1"), ([ASKED, HELLO], "ends with the assistant"),
        ([{"role": "user"}], "neither text nor messages"),
    ],
)  # fmt: skip
def test_a_conversation_that_cannot_be_answered_is_named_with_its_line(tmp_path, chat, said):
    with pytest.raises(UserError, match=f"line 2: 'prompt' .*{said}"):
        read_problems(write(tmp_path / "data.jsonl", GOOD, GOOD | {"id": "b", "prompt": chat}), "reward")


def test_a_missing_or_binary_file_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"none\.jsonl.*data\.prepare"):
        read_problems(tmp_path / "none.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="binary"):
        read_problems(tmp_path / "binary")


@given(
    st.lists(st.tuples(st.integers(), st.text(max_size=9), st.integers(0, 99)), min_size=2, max_size=30, unique=True)
)
def test_every_sample_has_a_seed_of_its_own(keys):
    seeds = [derive_seed(*key) for key in keys]
    assert len(set(seeds)) == len(keys)
    assert all(0 <= seed < 2**56 for seed in seeds)
    assert seeds == [derive_seed(*key) for key in keys]


THINKING = "<|channel|>analysis<|message|>1 plus 2 is 3<|end|><|start|>assistant"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A folder with the tokenizer and the template of the tiny model."""
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    return folder


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
