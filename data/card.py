"""Writes prepared files and the card that describes them."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data.problems import Problem
from grpo.stack.json_files import replace

CARD = "card.json"


def counts(problems: Sequence[Problem]) -> dict[str, dict[str, int]]:
    """Return the number of problems per source, data source, year, level and subject; empty categories are left out."""
    columns: dict[str, list[Any]] = {
        "datasource": [problem.datasource for problem in problems],
        "source": [problem.source for problem in problems],
        "year": [problem.paper and problem.paper[0] for problem in problems],
        "level": [problem.level for problem in problems],
        "subject": [problem.subject for problem in problems],
    }
    counted = {name: Counter(str(value) for value in values if value is not None) for name, values in columns.items()}
    return {name: dict(sorted(counter.items())) for name, counter in counted.items() if counter}


def write(
    out: Path,
    records: Mapping[str, Sequence[Mapping[str, str]]],
    described: Mapping[str, Any],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Write NAME.jsonl for each split and the card, each by renaming. The old card goes first, the new one comes last.

    A card that exists therefore describes the files beside it, even after an interruption.
    described: the card's content for each split; about: its content on the whole. Returns the card.
    """
    files, contents = {}, {}
    for split, lines in records.items():
        name = f"{split}.jsonl"
        contents[name] = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in lines)
        digest = hashlib.sha256(contents[name].encode()).hexdigest()
        files[name] = {"records": len(lines), "sha256": digest, **described[split]}
    card = {"files": files, **about}
    out.mkdir(parents=True, exist_ok=True)
    (out / CARD).unlink(missing_ok=True)
    for name, content in contents.items():
        replace(out / name, content)
    replace(out / CARD, json.dumps(card, indent=2, ensure_ascii=False) + "\n")
    return card
