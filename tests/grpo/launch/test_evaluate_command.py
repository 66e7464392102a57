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


def test_it_names_the_model_the_adapter_and_the_settings_of_the_run(setting, tmp_path) -> None:
    changes = {"thinking_budget": 10, "answer_budget": 8, "enable_prefix_caching": True, "eval_temperature": 0.5}
    read = read_options(setting, tmp_path / "final", **changes)
    assert read.model == str(setting.flags["pretrain"]) and read.adapter == tmp_path / "final"
    assert (str(read.data), read.max_tokens, read.temperature) == (str(setting.flags["eval_dataset"]), 32, 0.5)
    assert (read.tensor_parallel, read.n, read.out.name) == (2, 4, "run")
    assert (read.thinking_budget, read.answer_budget, read.thinking_delimiter) == (10, 8, "harmony")
    assert read_options(setting, None).adapter is None, "none was saved"


def test_it_scores_with_the_rewards_of_the_run(setting, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(tmp_path / "my reward.py"), str(tmp_path / "short.py")]
    monkeypatch.setenv("GRPO_REWARD_FILES", os.pathsep.join(paths))
    monkeypatch.setenv("GRPO_REWARD_WEIGHTS", "1 -0.125")
    read = read_options(setting, None, remote_rm_url=USER_REWARD)
    assert own_reward.read_options(read) == user_files.from_environment()
    server = setting.make_config(remote_rm_url="http://127.0.0.1:1/reward")
    assert "does not ask a server" in describe_evaluation(server, None)


def test_an_environment_is_played_under_the_limits_of_the_run(setting, monkeypatch: pytest.MonkeyPatch) -> None:
    (file := setting.folder / "my guess.py").touch()
    limits = {"TURN_LIMIT": "4", "ROLLOUT_SECONDS": "30", "TOOL_SECONDS": "2.5", "SCORE_SECONDS": "6"}
    for name, value in ({"ENVIRONMENT": str(file), "LIBRARY": "/my texts", "MAX_BRANCHES": "3"} | limits).items():
        monkeypatch.setenv(f"GRPO_{name}", value)
    played = {"agent_func_path": AGENT, "apply_chat_template": None}
    read = read_options(setting, Path("/final"), **played)
    assert (Path(read.environment).name, str(read.library), read.turns) == ("my guess.py", "/my texts", 4)
    assert (read.seconds, read.tool_seconds, read.score_seconds) == (30, 2.5, 6)
    assert read.max_model_len == 64 + 32
    monkeypatch.setenv("GRPO_ENVIRONMENT", "python single")
    config = setting.make_config(remote_rm_url=OUR_REWARD, **played)
    assert "plays one environment" in describe_evaluation(config, None)
