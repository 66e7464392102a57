"""The last line of a run: how to evaluate what it trained."""

import os
import shlex
from pathlib import Path

import pytest

from eval import evaluate, own_reward
from grpo.environments.settings import AGENT
from grpo.launch.run_dir import describe_evaluation
from grpo.run.eval_metric import OUR_REWARD, USER_REWARD
from reward import user_files


def read_options(setting, adapter, **changes):
    """What eval.evaluate reads from the command."""
    line = describe_evaluation(setting.make_config(**{"remote_rm_url": OUR_REWARD} | changes), adapter)
    words = shlex.split(line.partition(" && ")[2].partition("python ")[2])
    assert words[:2] == ["-m", "eval.evaluate"]
    return evaluate.parser().parse_args(words[2:])


def test_it_names_the_folder_of_the_engines_model(setting, tmp_path) -> None:
    read = read_options(setting, tmp_path / "final", engine_model=setting.flags["pretrain"], eval_temperature=0.5)
    assert read.model == str(setting.flags["pretrain"]) and read.adapter == tmp_path / "final"
    assert (str(read.data), read.max_tokens, read.temperature) == (str(setting.flags["eval_dataset"]), 32, 0.5)
    assert read.tensor_parallel == 2 and read.n == 8 and read.out.name == "run"


def test_it_has_the_budgets_of_the_run_and_no_adapter_that_was_not_saved(setting) -> None:
    read = read_options(setting, None, thinking_budget=10, answer_budget=8, enable_prefix_caching=True)
    assert (read.thinking_budget, read.answer_budget, read.thinking_delimiter) == (10, 8, "harmony")
    assert read.adapter is None


def test_it_scores_with_the_rewards_of_the_run(setting, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(tmp_path / "my reward.py"), str(tmp_path / "short.py")]
    monkeypatch.setenv("GRPO_REWARD_FILES", os.pathsep.join(paths))
    monkeypatch.setenv("GRPO_REWARD_WEIGHTS", "1 -0.125")
    read = read_options(setting, None, remote_rm_url=USER_REWARD)
    assert own_reward.read_options(read) == user_files.from_environment()
    assert [str(path) for path in read.reward] == paths and read.reward_weights == ["1.0", "-0.125"]


@pytest.fixture
def environment_flags(setting, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Flags of a run in the environment of a file."""
    (file := setting.folder / "my guess.py").touch()
    given = {"ENVIRONMENT": str(file), "LIBRARY": "/my texts", "MAX_BRANCHES": "3"}
    given |= {"TURN_LIMIT": "4", "ROLLOUT_SECONDS": "30", "TOOL_SECONDS": "2.5", "SCORE_SECONDS": "6"}
    for name, value in given.items():
        monkeypatch.setenv(f"GRPO_{name}", value)
    return {"agent_func_path": AGENT, "apply_chat_template": None}


def test_an_environment_is_played_under_the_limits_of_the_run(setting, environment_flags) -> None:
    read = read_options(setting, Path("/final"), **environment_flags)
    assert (Path(read.environment).name, read.turns) == ("my guess.py", 4)
    assert (read.seconds, read.tool_seconds, read.score_seconds) == (30, 2.5, 6)
    assert read.max_model_len == 64 + 32
    line = describe_evaluation(setting.make_config(remote_rm_url=OUR_REWARD, **environment_flags), None)
    assert "--library '/my texts'" in line


def test_where_there_is_none_the_line_says_why(setting, environment_flags, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {"remote_rm_url": OUR_REWARD}
    server = setting.make_config(remote_rm_url="http://127.0.0.1:1/reward")
    assert "no command: eval.evaluate does not ask a server for rewards" in describe_evaluation(server, None)
    assert "set EVAL_DATA" in describe_evaluation(setting.make_config(**ours, eval_dataset=None), None)
    monkeypatch.setenv("GRPO_ENVIRONMENT", "python single")
    assert "plays one environment" in describe_evaluation(setting.make_config(**ours, **environment_flags), None)
