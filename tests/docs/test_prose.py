"""Pages are short, and so are their sentences."""

import pytest

from tests.docs.pages import GENERATED, Page, page, pages

MOST_WORDS = 25


@pytest.mark.parametrize("page", (*pages(), *map(Page, GENERATED)), ids=lambda page: page.name)
def test_no_sentence_is_long(page: Page) -> None:
    sentences = page.sentences
    assert len(sentences) > 5
    assert [sentence for sentence in sentences if len(sentence.split()) > MOST_WORDS] == []


def test_the_readme_is_one_page() -> None:
    assert len(page("README.md").text.split()) <= 1200


@pytest.mark.parametrize(
    "page", [page for page in pages() if page.name.startswith("docs/")], ids=lambda page: page.name
)
def test_a_topic_has_at_most_a_thousand_words(page: Page) -> None:
    assert page.words <= 1000


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_a_page_has_one_title_and_no_overlong_lines(page: Page) -> None:
    assert len([line for line in page.outside.splitlines() if line.startswith("# ")]) == 1
    assert [line for line in page.outside.splitlines() if len(line) > 120 and not line.startswith("|")] == []
