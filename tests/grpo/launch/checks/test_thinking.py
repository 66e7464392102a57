"""A thinking budget that does not fit the lengths or the tokenizer is refused before a run."""

from pathlib import Path

import pytest

from tests.conftest import write_tokenizer_with_stops

BUDGETS = {"thinking_budget": 16, "answer_budget": 8, "enable_prefix_caching": True}


@pytest.fixture(autouse=True)
def tokenizer(setting) -> None:
    write_tokenizer_with_stops(Path(setting.flags["pretrain"]))


def test_fitting_budgets_are_accepted(setting) -> None:
    # <|end|><|start|>assistant<|channel|>final<|message|> are 6 tokens
    assert setting.find_problems(**BUDGETS, generate_max_len=30) == []
    enough = "that is enough<|end|><|start|>assistant<|channel|>final<|message|>"
    assert setting.find_problems(**BUDGETS, thinking_delimiter=enough, generate_max_len=38) == []
    assert setting.find_problems() == []


def test_schedule_stage_may_shorten_thinking_but_not_remove_it(setting) -> None:
    """16 + 6 + 8 tokens in all, and the answer keeps its 8: a limit of 15 leaves the thinking one token."""
    assert setting.find_problems(**BUDGETS, generate_max_len=30, length_schedule="15,30@2") == []
    assert (
        setting.find_problems(**BUDGETS | {"thinking_budget": 0}, generate_max_len=30, length_schedule="14,30@2") == []
    )
    for first in (7, 14):
        (problem,) = setting.find_problems(**BUDGETS, generate_max_len=30, length_schedule=f"{first},30@20%")
        assert f"--length_schedule begins with {first} tokens" in problem and "more than 14" in problem
    (problem,) = setting.find_problems(**BUDGETS, length_schedule="15,14")
    assert "nothing says when" in problem


@pytest.mark.parametrize(
    ("changes", "what", "remedy"),
    [
        ({"generate_max_len": 29}, "--generate_max_len is 29", "--generate_max_len to at least 30"),
        ({"thinking_delimiter": "that is enough"}, "would not answer in its final message", "use harmony, or a text"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(setting, changes, what: str, remedy: str) -> None:
    problems = setting.find_problems(**BUDGETS | changes)
    assert any(what in problem and remedy in problem.split("->")[1] for problem in problems), problems


def test_a_tokenizer_that_cannot_be_read_is_named(setting) -> None:
    Path(setting.flags["pretrain"], "tokenizer.json").write_text("{}")
    assert any("tokenizer.json cannot be read" in problem for problem in setting.find_problems(**BUDGETS))
