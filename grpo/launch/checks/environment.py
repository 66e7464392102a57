"""The environment of a run with several turns: its name, its library, its limits.

Flags that it cannot go with are refused by :mod:`grpo.launch.flags`, which the trainer asks, too.
"""

import os
from collections.abc import Iterator

from grpo.launch.config import Config
from grpo.rollout.multi_turn.environment import SetupError, load
from grpo.rollout.multi_turn.settings import Settings, has_environment
from grpo.stack.problem import Problem


def check_environment(config: Config) -> Iterator[Problem]:
    """Load the environment, and let it look for what it needs."""
    if not has_environment(config.args):
        return
    try:
        load(Settings.from_variables(os.environ).environment).check()
    except SetupError as error:
        mend = "mend the environment, whose check() says so"
        yield Problem(error.problem.what, error.problem.remedy or mend)
