"""Checks of the chosen problems before they are written: overlap of train and eval, and prompt lengths."""

from collections.abc import Sequence

from data.problems import Problem
from grpo.launch.rendering import render
from grpo.rollout.problem_files import normalize
from grpo.stack.problem import UserError

SHOWN = 3  # of the lines about single rows


def shorten(lines: Sequence[str]) -> list[str]:
    """Return the first lines, indented, and how many follow."""
    more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return [f"  {line}" for line in [*lines[:SHOWN], *more]]


def refuse(what: str, remedy: str, lines: Sequence[str]) -> UserError:
    """Return the refusal of single rows: the remedy, then the first of them."""
    return UserError(what, "\n".join([f"{remedy}:", *shorten(lines)]))


def check_overlap(problems: Sequence[Problem], decontaminate: bool) -> tuple[list[Problem], list[str]]:
    """Find problems of train that are also in eval: of the same text (see `normalize`) or contest place.

    Args:
        decontaminate: leave these problems out of train.

    Returns:
        The problems to keep, and a line for each that was left out.

    Raises:
        UserError: for an overlap, unless `decontaminate` is set.
    """
    held_out = {key: one for one in problems if one.split == "eval" for key in (one.id, normalize(one.text))}
    kept, lines = [], []
    for one in problems:
        same = held_out.get(normalize(one.text)) or held_out.get(one.id)
        if same and one.split == "train":
            lines.append(f"{one.location}: is the same as {same.location}")
        else:
            kept.append(one)
    if lines and not decontaminate:
        what = f"problems of train that are also in eval: {len(lines)}"
        raise refuse(what, "leave them out of train with --decontaminate", lines)
    return kept, lines


def leave_out_long(problems: Sequence[Problem], model: str, limit: int) -> tuple[list[Problem], list[str]]:
    """Return the problems whose prompts have at most `limit` tokens, and a line for each other.

    Raises UserError if the model (a folder or a hub id) has no tokenizer that renders them.
    """
    rendered = render(model, [one.prompt for one in problems], {})
    measured = list(zip(problems, (prompt.tokens for prompt in rendered), strict=True))
    lines = [f"{one.location}: has a prompt of {length} tokens" for one, length in measured if length > limit]
    return [one for one, length in measured if length <= limit], lines
