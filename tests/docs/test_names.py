"""Names in the documentation exist in the code: settings, flags, metrics, patches, benchmarks."""

import re

import pytest

from benchmarks.__main__ import SIZES as BENCHMARKS
from grpo.launch.config import trainer_parser
from grpo.metrics.metric_schema import BY_NAME
from grpo.settings.recipe import default
from tests.docs.known import is_name, is_variable, read_sources
from tests.docs.pages import ROOT, Page, get_page, list_pages

_SETTING = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")  # in any code; of one word only where it is the whole span
_ALONE = re.compile(r"([A-Z][A-Z0-9]{3,})(=.*)?")
_NAME = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)+(?:\.\*)?")
_FLAG = re.compile(r"--[a-z][\w-]*")


PRESENT = [page for page in list_pages() if page.name != "CHANGELOG.md"]  # which names what is gone, too


def find_settings(page: Page) -> set[str]:
    """The names of settings in a page: in code spans, and in the assignments of commands."""
    named = {name for span in page.spans for name in _SETTING.findall(span)}
    named |= {match[1] for span in page.spans if (match := _ALONE.fullmatch(span))}
    return named | {name for language, block in page.blocks if language == "bash" for name in _SETTING.findall(block)}


@pytest.mark.parametrize("page", PRESENT, ids=lambda page: page.name)
def test_settings_exist(page: Page) -> None:
    assert sorted(name for name in find_settings(page) if not is_variable(name)) == []


@pytest.mark.parametrize("page", list_pages(), ids=lambda page: page.name)
def test_names_exist(page: Page) -> None:
    assert sorted({span for span in page.spans if _NAME.fullmatch(span) and not is_name(span)}) == []


@pytest.mark.parametrize("page", PRESENT, ids=lambda page: page.name)
def test_flags_exist(page: Page) -> None:
    flags = {flag for span in page.spans for flag in _FLAG.findall(span)}
    known = trainer_parser()._option_string_actions.keys()
    own = read_sources() + (ROOT / "scripts" / "test.sh").read_text()
    assert sorted(flag for flag in flags if flag not in known and not re.search(rf"{flag}(?![\w-])", own)) == []


def test_metrics_in_tables_and_lists_exist() -> None:
    tables = [
        (page.name, table) for page in list_pages() for table in page.tables if table[0][0] in ("metric", "look at")
    ]
    in_tables = [
        (name, metric) for name, table in tables for row in table[1:] for metric in re.findall(r"`(.+?)`", row[0])
    ]
    listed = [
        (page.name, metric)
        for page in list_pages()
        for part in re.findall(r"^## Metrics\n(.*?)(?=^## |\Z)", page.outside, re.DOTALL | re.MULTILINE)
        for metric in re.findall(r"`([a-z_]+(?:\.\*)?)`", part)
    ]
    assert len(in_tables) > 10 and len(listed) > 15
    assert [pair for pair in in_tables + listed if pair[1] not in BY_NAME] == []


def test_wrong_names_are_noticed() -> None:
    assert is_variable("LEARNING_RATE") and is_variable("GEMINI_API_KEY") and not is_variable("LEARNING_RATES")
    assert is_name("ppo_kl") and not is_name("ppo_kll")
    text = Page("README.md")
    assert "LEARNING_RATE" in find_settings(text) and "JUDGE" in find_settings(text)


def test_the_readme_has_the_defaults_of_ten_settings() -> None:
    table = next(table for table in get_page("README.md").tables if table[0][0] == "setting")
    shown = {row[0].strip("`"): "" if row[1] == "empty" else row[1].strip("`") for row in table[1:]}
    assert len(shown) == 10 and shown == {name: default(name) for name in shown}


def read_first_column(page_name: str, header: str) -> list[str]:
    """The code spans in the first column of the page's table with this header."""
    table = next(table for table in get_page(page_name).tables if table[0][0] == header)
    return [row[0].strip("`") for row in table[1:]]


def test_table_lists_every_patch_in_series_order() -> None:
    series = (ROOT / "patches" / "openrlhf-0.9.3" / "series").read_text().splitlines()
    names = [line.removesuffix(".patch") for line in series if not line.startswith("#")]
    assert read_first_column("docs/patches.md", "patch") == names


def test_every_benchmark_has_its_row() -> None:
    assert sorted(read_first_column("docs/benchmarks.md", "benchmark")) == sorted(BENCHMARKS)


def test_the_source_tree_matches_the_checkout() -> None:
    blocks = get_page("docs/architecture.md").blocks
    tree = next(block for _, block in blocks if block.startswith("train_grpo.sh"))
    names = [line.split()[0] for line in tree.splitlines()]
    assert [name for name in names if not (ROOT / name).exists()] == []
    folders = {file.name + "/" for file in ROOT.iterdir() if (file / "__init__.py").is_file()}
    assert folders <= set(names)
