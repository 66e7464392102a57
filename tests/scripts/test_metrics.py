"""The metrics document matches the schema."""

import re
from pathlib import Path

from grpo.metrics.metric_schema import SCHEMA
from scripts import metrics

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_document_is_what_the_schema_gives(capsys) -> None:
    assert metrics.main([]) == 0
    assert DOCUMENT.read_text(encoding="utf-8") == capsys.readouterr().out, "see the document's third line"


def test_every_metric_is_one_row_of_its_tier() -> None:
    sections = re.split(r"^## (\d)\. .*\n", metrics.markdown(), flags=re.MULTILINE)[1:]
    for tier, section in zip(map(int, sections[::2]), sections[1::2], strict=True):
        rows = [line for line in section.splitlines() if line.startswith("| `")]
        assert [row.split("`")[1] for row in rows] == [metric.name for metric in SCHEMA if metric.tier == tier]
        assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {7}, "a bar in a cell is escaped"


def test_every_source_is_explained() -> None:
    assert {metric.source for metric in SCHEMA} == metrics.SOURCES.keys()
