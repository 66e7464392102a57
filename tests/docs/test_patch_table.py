"""The page of the patches lists each of them, as its header describes it."""

import re

import pytest

from patches import series
from tests.docs.pages import get_page


@pytest.mark.parametrize("version", series.known_versions())
def test_the_page_lists_every_patch(version: str) -> None:
    (table,) = [table[1:] for table in get_page("docs/patches.md").tables if table[0][0] == "patch"]
    assert [row[0].strip("`") for row in table] == [patch.stem for patch in series.load(version).patches]


def test_the_page_has_the_first_sentence_of_each_description() -> None:
    text = get_page("docs/patches.md").text
    for patch in series.load("0.9.3").patches:
        lines = re.search(r"^Description: (.+(?:\n .+)*)", patch.read_text(), re.MULTILINE)
        assert lines, patch
        sentence = re.split(r"(?<=[a-z)])\. ", " ".join(lines[1].split()))[0].rstrip(".").replace("|", "\\|")
        assert f"| `{patch.stem}` | {sentence} |\n" in text, "edit the page, or the header"
