"""Which problem a rendered prompt belongs to: OpenRLHF drops the ids of the data files."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from grpo.environments.mixture import FIELD
from grpo.stack.json_files import numbered_rows


def index_by_prompt(
    file: Path, rows: Iterable[tuple[str, str]], environments: Mapping[str, str] | None = None
) -> dict[str, dict[str, str]]:
    """Return ``id`` and ``datasource`` of each problem of a data file, by the prompt that the engines get.

    A problem without an id is named by the hash of its prompt.

    Args:
        rows: data source and prompt of each line, in the order of the file; the last ones may be missing.
        environments: by prompt, in a run with several of them; a problem then has its ``environment``, too.
    """
    named = {prompt: {FIELD: name} for prompt, name in (environments or {}).items()}
    ids = [row.get("id") for _, row in numbered_rows(file)]
    problems = {}
    for (source, prompt), id in zip(rows, ids, strict=False):  # --max_samples may leave out the last ones
        id = id or name_problem(prompt)
        problems[prompt] = {"id": id, "datasource": source, **named.get(prompt, {})}
    return problems


def name_problem(prompt: str) -> str:
    """Return the id of a problem whose line of the data file has none."""
    return f"prompt-{hashlib.sha256(prompt.encode()).hexdigest()[:16]}"
