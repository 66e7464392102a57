"""A thinking budget that does not fit the lengths or the tokenizer is refused before a run."""

from pathlib import Path

import pytest

from tests.conftest import write_tokenizer_with_stops

BUDGETS = {"thinking_budget": 16, "answer_budget": 8, "enable_prefix_caching": True}


@pytest.fixture(autouse=True)
def tokenizer(setting) -> None:
    write_tokenizer_with_stops(Path(setting.flags["pretrain"]))


ENOUGH = "that is enough<|end|><|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"generate_max_len": 30}, None),  # <|end|><|start|>assistant<|channel|>final<|message|> are 6 tokens
        ({"generate_max_len": 29}, "set --generate_max_len to at least 30"),
        ({"generate_max_len": 38, "thinking_delimiter": ENOUGH}, None),
        ({"thinking_delimiter": "that is enough"}, "use harmony, or a text"),
        # The answer keeps its 8 tokens: a limit of 15 leaves the thinking one.
        ({"generate_max_len": 30, "length_schedule": "15,30@2"}, None),
        ({"generate_max_len": 30, "length_schedule": "14,30@20%"}, "begin with more than 14"),
        ({"generate_max_len": 30, "length_schedule": "7,30@20%"}, "begin with more than 14"),
        ({"generate_max_len": 30, "length_schedule": "14,30@2", "thinking_budget": 0}, None),
        ({"length_schedule": "15,14"}, "says when it begins"),
    ],
)
def test_budgets_must_fit_lengths_and_tokenizer(setting, changes: dict[str, object], what: str | None) -> None:
    problems = setting.find_problems(**BUDGETS | changes)
    assert problems == [] if what is None else len(problems) == 1 and what in problems[0]


def test_a_tokenizer_that_cannot_be_read_is_named(setting) -> None:
    Path(setting.flags["pretrain"], "tokenizer.json").write_text("{}")
    assert any("tokenizer.json cannot be read" in problem for problem in setting.find_problems(**BUDGETS))
