"""Checks of the chosen problems before they are written: overlap of train and eval, and prompt lengths."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from data import duplicates
from data.problems import Problem
from grpo.rollout.prompts import renderer
from grpo.rollout.response_text import decode_tokens
from grpo.stack.problem import UserError

# The card names at most this many of a group of variants; templates make groups of thousands.
SHOWN_VARIANTS = 10


def check_overlap(
    problems: Sequence[Problem], decontaminate: bool
) -> tuple[list[Problem], list[str], dict[str, list[dict[str, Any]]]]:
    """Find problems of train that are also in eval: the same contest place, text, or a near-duplicate.

    Args:
        decontaminate: leave the problems of train that overlap out.

    Returns:
        The problems to keep; a line for each that was left out; for the card, the near-duplicates within a split and
        the groups of variants (which may span both).

    Raises:
        UserError: for an overlap, unless `decontaminate` is set.
    """
    pairs, groups = duplicates.find([one.text for one in problems], [one.canonical_answer for one in problems])
    overlaps = {}  # problem of train -> its place in eval
    within = []
    for pair in pairs:
        a, b = problems[pair.first], problems[pair.second]
        if a.split == b.split:
            within.append({"split": a.split, "ids": [a.id, b.id], "similarity": round(pair.similarity, 3)})
        else:
            train, held_out = (a, b) if a.split == "train" else (b, a)
            overlaps[train] = f"is {pair.similarity:.0%} alike {held_out.id} ({held_out.location})"
    in_eval = {key: one for one in problems if one.split == "eval" for key in (one.id, one.normalized)}
    for train in problems:
        same = in_eval.get(train.id) or in_eval.get(train.normalized)
        if train.split == "train" and same:
            overlaps[train] = f"is the same as in {same.location}"
    if overlaps:
        lines = [f"{train.id} ({train.location}) {where}" for train, where in overlaps.items()]
        if not decontaminate:
            listed = "\n".join(f"  {line}" for line in lines)
            raise UserError(
                f"{len(lines)} problems of train are also in eval:\n{listed}",
                "leave them out of train with --decontaminate",
            )
        kept = [problem for problem in problems if problem not in overlaps]
        return kept, lines, check_overlap(kept, decontaminate)[2]
    variants = []
    for group in groups:
        by_split = Counter(str(problems[index].split) for index in group)
        variants.append({**by_split, "ids": [problems[index].id for index in group[:SHOWN_VARIANTS]]})
    return list(problems), [], {"near_duplicates": within, "variants": variants}


def check_lengths(
    problems: Sequence[Problem], tokenizer_name: str, limit: int | None, drop_long: bool
) -> tuple[list[Problem], list[str], dict[str, Any]]:
    """Measure the prompts in tokens and find those longer than `limit`.

    Args:
        limit: tokens; None for no limit.
        drop_long: leave long prompts out.

    Returns:
        The problems to keep; a line for each that was left out; for the card, the largest length of each split and its
        99th percentile (the smallest length that 99% do not exceed).

    Raises:
        UserError: for a prompt that is too long, unless `drop_long` is set.
    """
    lengths = dict(zip(problems, prompt_lengths(tokenizer_name, [one.prompt for one in problems]), strict=True))
    too_long = {one: length for one, length in lengths.items() if limit is not None and length > limit}
    lines = [f"{one.id} ({one.location}) has {length} tokens, more than {limit}" for one, length in too_long.items()]
    if lines and not drop_long:
        listed = "\n".join(f"  {line}" for line in lines)
        raise UserError(
            f"{len(lines)} prompts are too long:\n{listed}",
            "leave them out with --drop-long, or raise --prompt-max-len here and PROMPT_MAX_LEN in train_grpo.sh",
        )
    report: dict[str, Any] = {"tokenizer": Path(tokenizer_name).name, "limit": limit}
    for split in ("train", "eval"):
        measured = sorted(length for one, length in lengths.items() if one.split == split and one not in too_long)
        if measured:
            report[split] = {"max": measured[-1], "p99": measured[math.ceil(0.99 * len(measured)) - 1]}
    return [one for one in problems if one not in too_long], lines, report


def prompt_lengths(tokenizer_name: str, prompts: Sequence[str]) -> list[int]:
    """Return how many tokens each prompt has as the engine gets it. Raises UserError: see :func:`render`."""
    return [len(tokens) for tokens, _ in render(tokenizer_name, prompts, {})]


def render(
    tokenizer_name: str, prompts: Iterable[str | list[dict[str, str]]], variables: Mapping[str, Any]
) -> list[tuple[list[int], str]]:
    """Return each prompt as the engine gets it, in tokens, and as text.

    A prompt is the user's message, or a list of messages.

    Args:
        variables: of the chat template, see :func:`grpo.rollout.chat_template.variables`.

    Raises UserError if the tokenizer (a folder or a hub id) cannot be loaded or has no chat template.
    """
    from transformers import AutoTokenizer  # slow to import, and only needed with --tokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_name)
    except (OSError, ValueError) as error:
        raise UserError(
            f"--tokenizer {tokenizer_name} cannot be loaded ({error})", "give the folder of the model or its hub id"
        ) from error
    if not tokenizer.chat_template:
        raise UserError(f"--tokenizer {tokenizer_name} has no chat template", "give the folder of the model")
    rendered = map(renderer(tokenizer, variables), prompts)
    return [(tokens, decode_tokens(tokenizer, tokens)) for tokens in rendered]
