"""What all command lines of this project share."""

import ast
from pathlib import Path

import pytest

from eval import compare

ROOT = Path(__file__).parents[2]
FOLDERS = ("data", "eval", "grpo", "patches", "scripts")


def parsers() -> list[tuple[str, ast.Call]]:
    """Every place that makes a parser, and the call."""
    found = []
    for file in sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "argparse.ArgumentParser":
                found.append((f"{file.relative_to(ROOT)}:{node.lineno}", node))
    return found


def test_no_parser_takes_abbreviations() -> None:
    found = parsers()
    assert len(found) > 10
    settings = {place: {word.arg: ast.unparse(word.value) for word in call.keywords} for place, call in found}
    assert [place for place, words in settings.items() if words.get("allow_abbrev") != "False"] == []


def test_an_abbreviation_is_a_bad_call(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        compare.main(["a", "b", "--js"])
    assert exit.value.code == 2 and "unrecognized arguments: --js" in capsys.readouterr().err
