"""The environment of a multi-turn run: its name, its library, its limits.

:mod:`grpo.launch.flags` refuses conflicting flags; the trainer calls it too.
"""

import os
from collections.abc import Iterator

from grpo.launch.config import Config
from grpo.rollout.multi_turn.environment import SetupError, load
from grpo.rollout.multi_turn.settings import EnvironmentSettings, has_environment
from grpo.stack.problem import Problem


def check_environment(config: Config) -> Iterator[Problem]:
    """Load the environment and run its own check."""
    if not has_environment(config.args):
        return
    try:
        load(EnvironmentSettings.from_variables(os.environ).environment).check()
    except SetupError as error:
        yield Problem(error.problem.what, error.problem.remedy or "fix what the check() of the environment reports")
