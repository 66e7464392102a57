"""Which columns of a row hold the problem, its answer, and what else is known about it."""

from collections.abc import Mapping, Sequence
from typing import Any

from data.sources import Row
from grpo.stack.problem import UserError

# The first name that a row has counts.
COLUMNS = {
    "problem": ("problem", "question", "prompt"),
    "answer": ("answer", "final_answer", "expected_answer", "label"),
    "solution": ("solution",),
    "year": ("year",),
    "contest": ("contest", "part"),
    "number": ("number", "problem_number"),
    "link": ("url", "link"),
    "id": ("id",),
    "level": ("level",),
    "subject": ("subject", "type"),
}


def rename_columns(rows: Sequence[Row], source: str, own: Mapping[str, str]) -> list[Row]:
    """Return the rows with our column names; a value that is no object, or unclear, is or becomes a ValueError.

    Args:
        own: what the user calls the columns `problem` and `answer`; those of COLUMNS for what is missing.

    Raises:
        UserError: if no row has a column with a problem, or with an answer or a solution.
    """
    names = {str(name): None for row in rows if isinstance(row.value, dict) for name in row.value}
    columns = f"columns: {', '.join(names) or 'none'}"
    for ours, name in own.items():
        if _normal(name) not in map(_normal, names):
            raise UserError(f"{source} has no column {name!r} ({columns})", f"name another --{ours}-column")
    renamed = [Row(location, _rename_fields(value, own)) for location, value in rows]
    objects = [row.value for row in renamed if isinstance(row.value, dict)]
    if objects and not any("problem" in value for value in objects):
        raise UserError(
            f"{source} has no column with the problem ({columns})",
            f"name it with --problem-column; known names are {', '.join(COLUMNS['problem'])}",
        )
    if objects and not any("answer" in value or "solution" in value for value in objects):
        raise UserError(
            f"{source} has no column with the answer ({columns})",
            f"name it with --answer-column; known names are {', '.join((*COLUMNS['answer'], 'solution'))}",
        )
    return renamed


def _rename_fields(value: Any, own: Mapping[str, str]) -> Any:
    if not isinstance(value, dict):
        return value
    given: dict[str, Any] = {}
    for name, content in value.items():
        if _normal(name) in given:
            return ValueError(f"has the column {name!r} twice")
        if content is not None:
            given[_normal(name)] = content
    columns = {}
    for name, aliases in COLUMNS.items():
        for alias in (_normal(own[name]),) if name in own else aliases:
            if alias in given:
                columns[name] = given[alias]
                break
    return columns


def _normal(name: Any) -> str:
    return str(name).strip().lower().replace(" ", "_")
