"""The parser of the installed `openrlhf.cli.train_ppo_ray`, built from its source without importing torch and vLLM."""

import argparse
import ast
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from grpo.flags import other_names
from grpo.stack.problem import UserError


def trainer_source() -> Path:
    """Return the source file of the trainer's command line. Raises UserError if OpenRLHF is not installed."""
    spec = importlib.util.find_spec("openrlhf")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("OpenRLHF is not installed in this Python", "run ./scripts/setup.sh")
    return Path(spec.submodule_search_locations[0]) / "cli" / "train_ppo_ray.py"


def trainer_parser() -> argparse.ArgumentParser:
    """Return the trainer's own argument parser; it raises UserError for wrong words.

    Raises:
        UserError: if OpenRLHF is missing, has another layout, or is not patched.
    """
    source = trainer_source()
    if not source.is_file():  # deleted, or another package of this name comes first in PYTHONPATH
        raise UserError(f"OpenRLHF's command line is missing: {source}", "run ./apply_patches.sh status")
    tree = ast.parse(source.read_text(encoding="utf-8"), filename=str(source))
    mains = (node for node in tree.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))
    if (main := next(mains, None)) is None:
        raise UserError(f"{source} has no main block: is it another OpenRLHF?", "run ./apply_patches.sh status")
    parsing = next(i for i, node in enumerate(main.body) if "parser.parse_args()" in ast.unparse(node))
    body = main.body[:parsing]
    used = {node.id for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)}
    namespace: dict[str, Any] = {"__name__": "trainer_parser"}
    exec(compile(ast.Module(_imports(tree, used) + body, type_ignores=[]), str(source), "exec"), namespace)
    parser: argparse.ArgumentParser = namespace["parser"]
    if "--run_dir" not in parser._option_string_actions:
        raise UserError("the installed OpenRLHF is not patched", "run ./apply_patches.sh")
    return make_strict(parser)


def _imports(tree: ast.Module, used: set[str]) -> list[ast.stmt]:
    """Return the imports of a module, reduced to the names in `used`."""
    imports: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names = [alias for alias in node.names if (alias.asname or alias.name).split(".")[0] in used]
            imports += [node] * bool(node.names)
    return imports


def make_strict(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Let a parser raise UserError for wrong words, and take no abbreviations."""

    def refuse(message: str) -> NoReturn:
        remedy = "./train_grpo.sh --help lists the flags"
        raise UserError(message.removeprefix("argument "), remedy)

    parser.error = refuse  # type: ignore[method-assign]
    parser.allow_abbrev = False
    return parser


def parse_given(parser: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, Any]:
    """Return the values of the given flags alone, in the order of the parser; None if the last one is empty.

    Raises:
        UserError: for an unknown flag, or a wrong value.
    """
    words, undone = _take_undone(parser, words)
    # What has a value already gets no default.
    names = [*(action.dest for action in parser._actions), *parser._defaults]
    absent = argparse.Namespace(**dict.fromkeys(names, argparse.SUPPRESS))
    known, unknown = parser.parse_known_args(words, absent)
    if unknown:
        raise other_names.explain(unknown, parser._option_string_actions)
    values = {name: value for name, value in vars(known).items() if value is not argparse.SUPPRESS}
    values |= dict.fromkeys(undone)
    return {action.dest: values[action.dest] for action in parser._actions if action.dest in values}


def _take_undone(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[list[str], set[str]]:
    """Take out the flags with an empty value, which undo those before them; return the other words, and their names."""
    others: list[str] = []
    undone: set[str] = set()
    for word, before in zip(words, ["", *words], strict=False):
        name = word.partition("=")[0]
        action = parser._option_string_actions.get(before if word == "" else name)
        if word == "" and action and action.nargs != 0:
            others.pop()
            undone.add(action.dest)
        elif action and word == f"{name}=":
            undone.add(action.dest)
        else:
            undone.discard(action.dest if action else "")
            others.append(word)
    return others, undone


def make_words(parser: argparse.ArgumentParser, values: dict[str, Any]) -> list[str]:
    """Return the command line that sets these values, each flag once."""
    words: list[str] = []
    for action in parser._actions:
        value = values.get(action.dest)
        if value is None or (value is False and isinstance(action, argparse._StoreTrueAction)):
            continue
        name = action.option_strings[0]
        if isinstance(value, bool):
            words += [name if value else f"--no-{name[2:]}"]
        else:
            words += [name, *(map(str, value) if isinstance(value, list | tuple) else [str(value)])]
    return words
