"""Which problem a rendered prompt belongs to: OpenRLHF drops the ids of the data files."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from grpo.stack.json_files import numbered_rows


def by_prompt(file: Path, rows: Iterable[tuple[str, str]]) -> dict[str, dict[str, str]]:
    """Return ``id`` and ``datasource`` of each problem of a data file, by the prompt that the engines get.

    A problem without an id is named by the hash of its prompt.

    Args:
        rows: data source and prompt of each line, in the order of the file; the last ones may be missing.
    """
    ids = [row.get("id") for _, row in numbered_rows(file)]
    return {
        prompt: {"id": id or f"prompt-{hashlib.sha256(prompt.encode()).hexdigest()[:16]}", "datasource": source}
        for (source, prompt), id in zip(rows, ids, strict=False)  # --max_samples may leave out the last ones
    }
