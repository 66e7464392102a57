"""The README is short; every page has one title, and American spelling."""

import re

import pytest

from tests.docs.pages import GENERATED, Page, page, pages

_BRITISH = re.compile(
    r"\b(?:\w*(?:avour|haviour|colour|neighbour|centre|licence|judgement|ancelled|labelled|modelled)\w*"
    r"|(?:recogni|organi|normali|initiali|optimi|summari|minimi|maximi|seriali|quanti|standardi|generali|speciali|utili"
    r"|analy|synchroni|tokeni|categori)s(?:e|ed|er|es|ing|ation)s?)\b",
    re.IGNORECASE,
)


def test_the_readme_is_one_page() -> None:
    assert len(page("README.md").text.split()) <= 1250


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_a_page_has_one_title_and_no_overlong_lines(page: Page) -> None:
    assert len([line for line in page.outside.splitlines() if line.startswith("# ")]) == 1
    assert [line for line in page.outside.splitlines() if len(line) > 120 and not line.startswith("|")] == []


@pytest.mark.parametrize("page", [*pages(), *map(Page, GENERATED)], ids=lambda page: page.name)
def test_the_spelling_is_american(page: Page) -> None:
    assert _BRITISH.findall(re.sub(r"`[^`\n]+`", "", page.outside)) == []


def test_british_spelling_is_noticed() -> None:
    words = "favours behaviour centre licence judgement cancelled recognises normalisation analyse"
    assert _BRITISH.findall(words + " otherwise noise precise analysis four optimizer") == words.split()
