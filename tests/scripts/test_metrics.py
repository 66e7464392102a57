"""The metrics document matches the schema."""

from pathlib import Path

from grpo.metrics.metric_schema import SCHEMA
from scripts import metrics

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_document_is_what_the_schema_gives(capsys) -> None:
    assert metrics.main([]) == 0
    assert DOCUMENT.read_text(encoding="utf-8") == capsys.readouterr().out, "see the document's third line"


def test_every_source_is_explained() -> None:
    assert {metric.source for metric in SCHEMA} == metrics.SOURCES.keys()
