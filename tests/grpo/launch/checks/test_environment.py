"""An environment that cannot be is refused before a run, with the remedy."""

from pathlib import Path

import pytest

from grpo.launch.judge import of_run
from grpo.launch.run_dir import command_script
from grpo.rollout.multi_turn.settings import AGENT


@pytest.fixture
def in_environment(setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A setting with the retrieval environment and a library of one document."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "a.txt").write_text("a text")
    monkeypatch.setenv("GRPO_ENVIRONMENT", "retrieval")
    monkeypatch.setenv("GRPO_LIBRARY", str(tmp_path / "library"))
    for name in ("TURN_LIMIT", "ROLLOUT_SECONDS", "TOOL_SECONDS", "MAX_BRANCHES"):
        monkeypatch.setenv(f"GRPO_{name}", "9")
    monkeypatch.setenv("GRPO_TEMPLATE", "served")
    setting.flags |= {"agent_func_path": AGENT, "apply_chat_template": None}
    return setting


def test_a_sound_environment_passes_without_a_judge(in_environment, monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_environment.problems() == []
    monkeypatch.setenv("GRPO_JUDGE", "1")
    judge = of_run(in_environment.config(remote_rm_url="reward/reward_func.py"), may_stand_in=True)
    assert judge.settings is None and judge.why_off == "the environment gives the reward"


@pytest.mark.parametrize(
    ("variables", "changes", "what", "remedy"),
    [
        ({"ENVIRONMENT": "retrieve"}, {}, "ENVIRONMENT retrieve is neither a .py file", "name one of these"),
        ({"LIBRARY": "/none"}, {}, "LIBRARY /none is neither a folder", "name a folder of .txt"),
        ({"LIBRARY": ""}, {}, "has no library", "set LIBRARY"),
        ({"TURN_LIMIT": "0"}, {}, "TURN_LIMIT is '0'", "above 0"),
        ({"TOOL_SECONDS": "soon"}, {}, "TOOL_SECONDS is 'soon'", "above 0"),
        ({"MAX_BRANCHES": "-1"}, {}, "MAX_BRANCHES is '-1'", "0 or more"),
        ({"TEMPLATE": "huggingface"}, {}, "TEMPLATE is 'huggingface'", "served or hub"),
        ({}, {"apply_chat_template": True}, "which formats its own chat", "remove it"),
        ({}, {"advantage_estimator": "reinforce"}, "ADVANTAGE_ESTIMATOR reinforce", "dr_grpo"),
        ({}, {"init_kl_coef": 0.01}, "KL_COEF 0.01 without --use_kl_loss", "add --use_kl_loss"),
        ({}, {"stop_properly_penalty_coef": 0.5}, "--stop_properly_penalty_coef applies to single", "remove it"),
        ({}, {"disable_fast_tokenizer": True}, "--disable_fast_tokenizer", "remove it"),
    ],
)
def test_what_cannot_be_is_refused(in_environment, monkeypatch, variables, changes, what, remedy) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"GRPO_{name}", value)
    problems = in_environment.problems(**changes)
    assert len(problems) == 1 and what in problems[0] and remedy in problems[0].partition("->")[2]


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "constant"])
def test_every_form_of_the_loss_goes_with_an_environment(in_environment, aggregation) -> None:
    assert in_environment.problems(loss_aggregation=aggregation) == []


def test_the_environment_is_in_the_command_that_starts_the_run_again(in_environment, tmp_path: Path) -> None:
    script = command_script(tmp_path / "run", "name", in_environment.config())
    assert "export GRPO_ENVIRONMENT=retrieval" in script and f"export GRPO_LIBRARY={tmp_path / 'library'}" in script
