"""Every flag that our code reads is one of the parser: mypy takes any attribute of a Namespace."""

import ast
from pathlib import Path

from grpo import stack
from grpo.flags.upstream import trainer_parser


def test_every_flag_that_is_read_is_one_of_the_parser():
    flags = {action.dest for action in trainer_parser()._actions}
    folder = Path(stack.__path__[0]).parent
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[-1] == "args":
                assert node.attr in flags, f"{file.relative_to(folder)}, line {node.lineno}: args.{node.attr}"
