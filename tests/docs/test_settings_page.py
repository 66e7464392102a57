"""docs/settings.md is what the table of settings gives."""

from grpo.settings.__main__ import page
from tests.docs.pages import ROOT


def test_the_page_is_generated() -> None:
    written = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert written == page(), "run python -P -m grpo.settings --page > docs/settings.md"
