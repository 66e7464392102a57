"""The lines of a plan on length schedule, thinking budget and environment."""

from pathlib import Path

import pytest

from grpo.environments.settings import AGENT
from grpo.launch.lengths import describe_lengths
from grpo.launch.plan import describe, make_plan
from scripts.tiny_model.tokenizer import write_tokenizer

BUDGETS = {"thinking_budget": 16, "answer_budget": 8, "generate_max_len": 40}


def test_a_schedule_says_when_its_limits_begin(setting) -> None:
    assert describe_lengths(setting.make_config(length_schedule="10,20@50,32@100")) == [
        "lengths     10 tokens at first, 20 from step 50, 32 from step 100; evaluations 32"
    ]
    (line,) = describe_lengths(setting.make_config(length_schedule="10,32@2.5%"))
    assert "32 once 2.5% are truncated over 5 steps" in line


def test_budget_line_shows_the_total_and_what_the_limits_leave(setting) -> None:
    write_tokenizer(Path(setting.flags["pretrain"]))
    # <|end|><|start|>assistant<|channel|>final<|message|> are 6 tokens
    assert describe_lengths(setting.make_config(**BUDGETS)) == [
        "thinking    16 + delimiter 6 + answer 8 = 30 of 40 tokens"
    ]
    config = setting.make_config(**BUDGETS, length_schedule="15,25@2,40@20%")
    lengths, thinking = describe_lengths(config)
    assert lengths.startswith("lengths     15 tokens at first, 25 from step 2, 40 once 20%")
    assert thinking.endswith("= 30 of 40 tokens; the length schedule limits the thinking to 1, 11, 16")
    assert [lengths, thinking] == describe(make_plan(config), config)[1:3]
    (thinking,) = describe_lengths(setting.make_config(**BUDGETS | {"generate_max_len": 20}))
    assert thinking.endswith("= 30 of 20 tokens"), "refused, and not for a schedule"


def test_an_environment_is_named_with_its_limits(setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_ENVIRONMENT", "retrieval")
    monkeypatch.setenv("GRPO_TURN_LIMIT", "8")
    assert describe_lengths(setting.make_config(agent_func_path=AGENT)) == ["environment retrieval: TURN_LIMIT 8"]
    assert describe_lengths(setting.make_config()) == []


@pytest.mark.parametrize(
    ("changes", "what", "has_tokenizer"),
    [
        ({"length_schedule": "10,20"}, "nothing says when 20 begins", True),
        ({**BUDGETS, "thinking_budget": -1}, "the thinking budget is -1", True),
        ({**BUDGETS, "thinking_delimiter": "think"}, "this tokenizer has no token </think>", True),
        (BUDGETS, "tokenizer.json cannot be read", False),
    ],
)
def test_invalid_settings_are_named_and_left_to_the_preflight(setting, changes, what, has_tokenizer) -> None:
    if has_tokenizer:
        write_tokenizer(Path(setting.flags["pretrain"]))
    (line,) = describe_lengths(setting.make_config(**changes))
    assert line.startswith("unknown     lengths: ") and what in line


def test_budgets_are_shown_without_a_tokenizer(setting) -> None:
    (Path(setting.flags["pretrain"]) / "tokenizer.json").unlink()
    assert describe_lengths(setting.make_config(**BUDGETS)) == [
        "thinking    16, a delimiter, and an answer of 8 tokens"
    ]
