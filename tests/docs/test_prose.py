"""The README is short, and every page has one title."""

import pytest

from tests.docs.pages import Page, get_page, list_pages


def test_the_readme_is_one_page() -> None:
    assert len(get_page("README.md").text.split()) <= 1250


@pytest.mark.parametrize("page", list_pages(), ids=lambda page: page.name)
def test_a_page_has_one_title_and_no_overlong_lines(page: Page) -> None:
    assert len([line for line in page.outside.splitlines() if line.startswith("# ")]) == 1
    assert [line for line in page.outside.splitlines() if len(line) > 120 and not line.startswith("|")] == []
