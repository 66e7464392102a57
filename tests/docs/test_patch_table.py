"""The page of the patches lists each of them, as its header describes it."""

from patches import series
from scripts import patch_table
from tests.docs.pages import get_page


def test_the_page_lists_every_patch() -> None:
    page = get_page("docs/patches.md")
    (table,) = [table[1:] for table in page.tables if table[0][0] == "patch"]
    for version in series.known_versions():
        assert [row[0].strip("`") for row in table] == [patch.stem for patch in series.load(version).patches]
    assert all(row[1] for row in table) and page.text == patch_table.make_page(), "run python -m scripts.patch_table"
