"""Flags in sentences and tables exist, what the code says of a page is there, and the pages stay few and short."""

import argparse
import re
import subprocess
from functools import cache

import pytest

from grpo.diagnosis.thresholds import LIMITS, OUT_OF_RANGE, REMEDIES
from grpo.flags import other_names
from grpo.flags.parser import make_parser
from grpo.flags.upstream import trainer_parser
from tests.docs.pages import GENERATED, ROOT, Page, list_pages
from tests.docs.test_commands import list_commands, list_inline_commands, parse

MOST_PAGES, MOST_WORDS = 18, 24_000
OTHERS = {"--private", "--shm-size", "--num-gpus", "--page"}  # of hf, docker, ray, and grpo.flags
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z\d_-]*\b(?![\w-])")  # no placeholder such as --no-NAME
CODE = ("data", "eval", "grpo", "patches", "reward", "scripts", "benchmarks", "tests", "requirements", "docs/cluster")


def list_flags(page: Page) -> list[str]:
    """The flags in a page's code spans and in its tables."""
    cells = [cell for table in page.tables for row in table for cell in row]
    return sorted({flag for text in [*page.spans, *cells] for flag in _FLAG.findall(text)})


@cache
def list_known() -> frozenset[str]:
    """Every option of the launcher, of OpenRLHF, of our commands, and of our scripts."""
    parsers = [make_parser(), trainer_parser()]
    spans = [command for _, command in list_commands() + list_inline_commands()]
    modules = {match[1] for span in spans if (match := re.search(r"\bpython -m ([\w.]+)", span))}
    for module in sorted({*modules, "patches"}):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(argparse.ArgumentParser, "error", lambda self, message: None)
            parsers.append(parse(module, [], patch))
    known = {option for parser in parsers for option in list_options(parser)}
    for name in ("setup", "test"):
        done = subprocess.run([ROOT / "scripts" / f"{name}.sh", "--help"], capture_output=True, text=True)
        known |= set(_FLAG.findall(done.stdout))
    known |= set(_FLAG.findall((ROOT / "scripts" / "lock.sh").read_text()))
    return frozenset(known | {f"--{name}" for name in other_names.GONE} | OTHERS)


def list_options(parser: argparse.ArgumentParser) -> set[str]:
    """The options of a parser and of its commands."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return set(parser._option_string_actions).union(
        *(list_options(command) for action in below for command in action.choices.values())
    )


@pytest.mark.parametrize(
    "page", [page for page in list_pages() if page.name != "CHANGELOG.md"], ids=lambda page: page.name
)
def test_flags_in_sentences_and_tables_exist(page: Page) -> None:
    assert [flag for flag in list_flags(page) if flag not in list_known()] == []


def test_pages_and_anchors_that_the_code_names_exist() -> None:
    files = [ROOT / "train_grpo.sh", ROOT / "apply_patches.sh"]
    files += [
        file
        for folder in CODE
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".sh", ".patch", ".yaml")
    ]
    named = {
        (str(file.relative_to(ROOT)), *match)
        for file in files
        for match in re.findall(r"\b(docs/[\w-]+\.md)(?:#([\w-]+))?", file.read_text(encoding="utf-8"))
    }
    missing = [
        (file, name)
        for file, name, anchor in named
        if not (ROOT / name).is_file() or (anchor and anchor not in Page(name).anchors)
    ]
    assert len(named) > 20 and missing == []


def test_the_pages_stay_few_and_short() -> None:
    pages = [page for page in list_pages() if page.name.startswith("docs/") or page.name == "README.md"]
    pages += [Page(name) for name in GENERATED]
    words = {page.name: len(page.text.split()) for page in pages}
    longest_first = sorted(words.items(), key=lambda item: -item[1])
    assert len(words) <= MOST_PAGES + 1 and sum(words.values()) <= MOST_WORDS, longest_first


def test_the_page_lists_every_finding() -> None:
    (table,) = [table for page in list_pages() for table in page.tables if table[0][0] == "finding"]
    listed = {row[0] for row in table[1:]} - {"out_of_range:METRIC"}
    limited = {limit.finding for limit in LIMITS if not limit.finding.startswith(OUT_OF_RANGE)}
    assert limited <= listed <= REMEDIES.keys()
