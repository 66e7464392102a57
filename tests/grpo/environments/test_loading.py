"""How environments and their settings are found, and refused with a remedy."""

import pytest

from grpo.environments.environment import Environment, SetupError
from grpo.environments.loading import load
from grpo.environments.mixture import Member, Mixture
from grpo.environments.settings import EnvironmentSettings, RolloutLimits
from grpo.stack.problem import UserError


def test_environments_are_loaded_by_name_or_file(tmp_path):
    assert issubclass(load("retrieval"), Environment)
    file = tmp_path / "file.py"
    for text, wrong in (
        ("x = 1", "Environment"),
        ("import nothing_there", "file.py"),
        ("raise SystemExit(1)", "file.py"),
    ):
        file.write_text(text)
        with pytest.raises(SetupError, match=wrong):
            load(str(file))
    for name, wrong in (
        ("retrieve", "retrieve"),
        (str(tmp_path / "gone.py"), "gone.py"),
    ):
        with pytest.raises(SetupError, match=wrong):
            load(name)


VARIABLES = {
    "TURN_LIMIT": ("3", "0"),
    "ROLLOUT_SECONDS": ("9", "x"),
    "TOOL_SECONDS": ("0.5", "-1"),
    "SCORE_SECONDS": ("4", "inf"),
    "MAX_BRANCHES": ("0", "-1"),
}


def test_settings_come_from_variables():
    environ = {"GRPO_ENVIRONMENT": "e"} | {f"GRPO_{name}": value for name, (value, _) in VARIABLES.items()}
    mixture = Mixture([Member("e", "e", 1.0)])
    settings = EnvironmentSettings(mixture, RolloutLimits(3, 9, 0.5, 4), 1)
    assert EnvironmentSettings.from_variables(environ) == settings
    for name, (_, wrong) in VARIABLES.items():
        with pytest.raises(UserError, match=f"--{name.lower()}: .*{wrong}"):
            EnvironmentSettings.from_variables(environ | {f"GRPO_{name}": wrong})
    with pytest.raises(SetupError, match="ENVIRONMENT"):
        EnvironmentSettings.from_variables({})
