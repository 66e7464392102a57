"""The page of the patches lists each of them, as its header describes it."""

import re

from patches import series
from tests.docs.pages import get_page


def describe(patch: str) -> str:
    """Return the first sentence of a header's Description."""
    [text] = re.findall(r"^Description: (.+(?:\n .+)*)", patch, re.MULTILINE)
    return re.split(r"(?<=[a-z)])\. ", " ".join(text.split()))[0].rstrip(".")


def test_the_page_lists_every_patch() -> None:
    page = get_page("docs/patches.md")
    (table,) = [table[1:] for table in page.tables if table[0][0] == "patch"]
    for version in series.known_versions():
        assert [row[0].strip("`") for row in table] == [patch.stem for patch in series.load(version).patches]
    described = [describe(patch.read_text()) for patch in series.load("0.9.3").patches]
    assert [row[1].replace("\\|", "|") for row in table] == described
