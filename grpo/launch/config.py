"""From the flags of `train_grpo.sh` to the resolved configuration of a run.

The flags belong to the installed `openrlhf.cli.train_ppo_ray`. The parser is built from its source, without importing
torch and vLLM. A wrong name or value is therefore refused within a second.
"""

import argparse
import ast
import datetime
import difflib
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from grpo.rollout import chat_template
from grpo.run.run_files import RunFiles
from grpo.settings.flags import find_setting_name
from grpo.settings.table import COUNT, SETTINGS
from grpo.stack.hub import model_folder
from grpo.stack.problem import UserError
from grpo.stack.secrets import secrets

# Set from the run directory, not by flags.
_OWNED_FLAGS = ("run_dir", "save_path")
_CLOSE = 0.8  # of difflib's ratio: below it, a suggestion is another word
_INPUT_PATHS = ("prompt_data", "eval_dataset", "remote_rm_url", "agent_func_path")
_PATHS = ("ckpt_path", "metrics_dir", "adapter")  # these are paths even where nothing is there
_COUNTS = ("actor_num_nodes", "max_epochs")  # besides those of settings


@dataclass(frozen=True)
class Config:
    """The flags of one run.

    Attributes:
        args: every flag of the trainer with its value, as the trainer will see it.
        given: the flags that the recipe or the user has set, in the parser's order.
        argv: `given` as a command line.
    """

    args: argparse.Namespace
    given: dict[str, Any]
    argv: list[str]

    @property
    def values(self) -> dict[str, Any]:
        """Return every flag with its value."""
        return dict(sorted(vars(self.args).items()))

    def replace_flags(self, **values: Any) -> "Config":
        """Return the configuration with other values of some flags."""
        parser, given = trainer_parser(), self.given | values
        argv = command_line(parser, given)
        return Config(args=_strict(parser).parse_args(argv), given=given, argv=argv)

    @property
    def rollouts_per_step(self) -> int:
        """Return how many responses one global step generates."""
        return self.args.rollout_batch_size * self.args.n_samples_per_prompt

    @property
    def actor_ranks(self) -> int:
        """Return the number of training processes."""
        return self.args.actor_num_nodes * self.args.actor_num_gpus_per_node

    @property
    def engine_gpus(self) -> int:
        """Return the number of GPUs of all engines."""
        return self.args.vllm_num_engines * self.args.vllm_tensor_parallel_size

    @property
    def gpus(self) -> int:
        """Return the number of GPUs that Ray must provide."""
        if self.args.colocate_all_models:
            return max(self.actor_ranks, self.engine_gpus)
        return self.actor_ranks + self.engine_gpus

    @property
    def max_model_len(self) -> int:
        """Return the length of the longest sequence, prompt and response, in tokens."""
        return self.args.max_len or self.args.prompt_max_len + self.args.generate_max_len


def trainer_source() -> Path:
    """Return the source file of the trainer's command line.

    Raises:
        UserError: if OpenRLHF is not installed.
    """
    spec = importlib.util.find_spec("openrlhf")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("OpenRLHF is not installed in this Python", "run ./scripts/setup.sh")
    return Path(spec.submodule_search_locations[0]) / "cli" / "train_ppo_ray.py"


def trainer_parser() -> argparse.ArgumentParser:
    """Return the trainer's own argument parser.

    Raises:
        UserError: if OpenRLHF is missing, has another layout, or is not patched.
    """
    source = trainer_source()
    if not source.is_file():  # deleted, or another package of this name comes first in PYTHONPATH
        raise UserError(f"OpenRLHF's command line is missing: {source}", "run ./apply_patches.sh status")
    tree = ast.parse(source.read_text(encoding="utf-8"), filename=str(source))
    main = next(
        (node for node in tree.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)),
        None,
    )
    if main is None:
        raise UserError(f"{source} has no main block: is it another OpenRLHF?", "run ./apply_patches.sh status")
    parsing = next(i for i, node in enumerate(main.body) if "parser.parse_args()" in ast.unparse(node))
    body = main.body[:parsing]
    used = {node.id for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)}
    namespace: dict[str, Any] = {"__name__": "trainer_parser"}
    exec(compile(ast.Module(_imports(tree, used) + body, type_ignores=[]), str(source), "exec"), namespace)
    parser: argparse.ArgumentParser = namespace["parser"]
    if "--run_dir" not in parser.format_usage():
        raise UserError("the installed OpenRLHF is not patched", "run ./apply_patches.sh")
    parser.allow_abbrev = False
    return parser


def _imports(tree: ast.Module, used: set[str]) -> list[ast.stmt]:
    """Return the imports of a module, reduced to the names in `used`."""
    imports: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names = [alias for alias in node.names if (alias.asname or alias.name).split(".")[0] in used]
            if node.names:
                imports.append(node)
    return imports


def resolve(flags: list[str], run_dir: Path) -> Config:
    """Parse the trainer's flags and add what follows from the run directory. The last of repeated flags wins.

    Raises:
        UserError: on an unknown flag, a value of the wrong type, a count below 1, or a secret among the values.
    """
    parser = trainer_parser()
    _refuse_secrets(flags)
    given = _parse_given(parser, flags)
    owned = [name for name in _OWNED_FLAGS if name in given]
    if owned:
        raise UserError(f"--{owned[0]} follows from the run directory", "use --run-dir DIR before the --")
    for name in _INPUT_PATHS:
        if os.path.exists(given.get(name) or ""):
            given[name] = os.path.abspath(given[name])
    for name in _PATHS:
        if given.get(name):
            given[name] = os.path.abspath(given[name])
    if not given.get("pretrain"):
        raise UserError("MODEL is empty", "set it to a model folder or a hub id")
    given["pretrain"] = model_folder(given["pretrain"])
    given["engine_model"] = model_folder(given.get("engine_model") or given["pretrain"])
    given["run_dir"] = str(run_dir)
    given.setdefault("metrics_dir", str(run_dir))
    files = RunFiles(run_dir, Path(given["metrics_dir"]))
    given.setdefault("ckpt_path", str(files.checkpoints))
    given["save_path"] = str(files.final)
    # W&B's own variables; Trackio gets the same names.
    given.setdefault("wandb_run_name", os.environ.get("WANDB_NAME") or run_dir.name)
    given.setdefault("wandb_project", os.environ.get("WANDB_PROJECT") or "gptoss-grpo")
    if chat_template.reads_date(Path(given["pretrain"])):
        given.setdefault("template_date", datetime.date.today().isoformat())
    if given.get("use_tensorboard") == "1":
        given["use_tensorboard"] = str(run_dir / "tensorboard")
    argv = command_line(parser, given)
    args = _strict(parser).parse_args(argv)
    for setting in SETTINGS.values():  # everything divides by these
        if setting.check is COUNT and setting.flag and (error := setting.problem(getattr(args, setting.flag))):
            raise error
    for name in _COUNTS:
        if getattr(args, name) < 1:
            raise UserError(f"--{name} is {getattr(args, name)}", "give 1 or more")
    return Config(args=args, given=given, argv=argv)


def _parse_given(parser: argparse.ArgumentParser, flags: list[str]) -> dict[str, Any]:
    """Return only the given flags, in the order of the parser."""
    defaults = {action.dest: action.default for action in parser._actions}
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    try:
        known, unknown = _strict(parser).parse_known_args(flags)
    finally:
        for action in parser._actions:
            action.default = defaults[action.dest]
    if unknown:
        raise _unknown_flags(parser, unknown)
    values = vars(known)
    return {action.dest: values[action.dest] for action in parser._actions if action.dest in values}


def _strict(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    def refuse(message: str) -> NoReturn:
        message = message.replace("(choose from 'gae', ", "(choose from ")  # which is refused, too
        name, colon, rest = message.removeprefix("argument ").partition(":")
        raise UserError(
            f"{find_setting_name(name)}{colon}{rest}", "python -m openrlhf.cli.train_ppo_ray --help lists the flags"
        )

    parser.error = refuse  # type: ignore[method-assign]
    return parser


def _unknown_flags(parser: argparse.ArgumentParser, unknown: list[str]) -> UserError:
    names = [word.split("=")[0] for word in unknown if word.startswith("--")]
    if not names:
        return UserError(f"{unknown[0]!r} does not belong to a flag", "remove it, or quote the value")
    close = [difflib.get_close_matches(name, parser._option_string_actions, n=1, cutoff=_CLOSE) for name in names]
    known = [match[0] for match in close if match]
    listed = "remove it; python -m openrlhf.cli.train_ppo_ray --help lists all flags"
    remedy = f"did you mean {' '.join(known)}?" if known else listed
    return UserError(f"a run has no flag {' '.join(names)}", remedy)


def command_line(parser: argparse.ArgumentParser, given: dict[str, Any]) -> list[str]:
    """Return the command line that sets these values, each flag once."""
    words: list[str] = []
    for action in parser._actions:
        value = given.get(action.dest)
        if value is None or value is False:
            continue
        words.append(action.option_strings[0])
        if isinstance(value, list | tuple):
            words += map(str, value)
        elif value is not True:
            words.append(str(value))
    return words


def _refuse_secrets(flags: list[str]) -> None:
    for position, word in enumerate(flags):
        is_wandb = (position > 0 and flags[position - 1] == "--use_wandb" and word != "1") or (
            word.startswith("--use_wandb=") and word != "--use_wandb=1"
        )
        if is_wandb:
            raise UserError("every user can read a key on a command line", "export WANDB_API_KEY and set USE_WANDB=1")
        for name, value in secrets().items():
            if value in word:
                raise UserError(
                    f"a flag contains the value of {name}", "remove it; secrets are only read from the environment"
                )
