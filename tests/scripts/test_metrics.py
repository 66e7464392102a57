"""The metrics document matches the schema."""

from pathlib import Path

from scripts import metrics

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_document_is_what_the_schema_gives(capsys) -> None:
    assert metrics.main([]) == 0
    assert DOCUMENT.read_text(encoding="utf-8") == capsys.readouterr().out, "see the document's third line"
