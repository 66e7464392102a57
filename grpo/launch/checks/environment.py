"""The environment of a multi-turn run: its name, its library, its limits.

:mod:`grpo.launch.flags` refuses conflicting flags; the trainer calls it too.
"""

import os
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from grpo.launch.checks.model import has_chat_template
from grpo.launch.config import Config
from grpo.rollout import chat_template
from grpo.rollout.multi_turn.environment import BuiltInTool, Environment, SetupError, load
from grpo.rollout.multi_turn.mixture import SINGLE
from grpo.rollout.multi_turn.settings import EnvironmentSettings, has_environment
from grpo.stack.json_files import numbered_rows
from grpo.stack.problem import Problem
from reward.labels import LabelError, parse_label


def check_environment(config: Config) -> Iterator[Problem]:
    """Load the environments, run their own checks, and read which problems are for each of them."""
    if not has_environment(config.args):
        return
    args = config.args
    try:
        mixture = EnvironmentSettings.from_variables(os.environ).mixture
        for member in mixture.members:
            environment = load(member.source)
            environment.check()
            yield from check_tools(environment, Path(args.pretrain), member.source)
        for file in (args.prompt_data, args.eval_dataset):
            if file and Path(file).is_file():
                check_labels(Path(file), mixture.of_file(Path(file), args.input_key), args)
    except SetupError as error:
        yield Problem(error.problem.what, error.problem.remedy or "fix what the check() of the environment reports")


def check_tools(environment: type[Environment], folder: Path, source: str) -> Iterator[Problem]:
    """Refuse tools that the model would never learn of. Tools that only an instance knows are not checked."""
    tools = environment.tools if isinstance(environment.tools, Sequence) else ()
    if not has_chat_template(folder):
        return  # another check reports it
    names = {"builtin_tools" if isinstance(tool, BuiltInTool) else "tools" for tool in tools}
    for name in chat_template.unread(folder, sorted(names)):
        yield Problem(
            f"the chat template of {folder} does not read {name}, so the model would not know the tools of {source}",
            "use the chat_template.jinja that comes with gpt-oss, or an environment without these tools",
        )


def check_labels(file: Path, environments: Mapping[str, str], args: Namespace) -> None:
    """Raise SetupError for the first label of a single answer that cannot be read."""
    for number, row in numbered_rows(file):
        if isinstance(row, dict) and environments.get(str(row.get(args.input_key))) == SINGLE:
            try:
                parse_label(row.get(args.label_key))
            except LabelError as error:
                raise SetupError(f"{file}, line {number} is for single answers: {error.what}", error.remedy) from None
