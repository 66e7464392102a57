r"""Turns problems of AIME, MATH, a file of your own or the synthetic task into train.jsonl, eval.jsonl and card.json.

    python -m data.prepare --source aime --out data/prepared                                # from the hub: 72 and 18
    python -m data.prepare --source aime --train math --skip-bad --out data/prepared        # and 45 of MATH to train on
    python -m data.prepare --source mine.csv --problem-column question --out data/mine
    python -m data.prepare --source mine.csv --labels any --out data/mine                   # for a reward of your own

A source is a .jsonl, .json, .parquet, .csv or .tsv file, `aime` or `math` for the pinned data sets of the hub, or
`synthetic`. docs/data.md has the rules. The same input gives the same bytes, in any row order.
"""

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data import synthetic
from data.problems import (
    ANY_LEVEL,
    MATH_COUNT,
    MATH_LEVELS,
    Form,
    Problem,
    assign_splits,
    choose_math,
    leave_out_held_out,
    merge_repeats,
    parse_rows,
)
from data.sources import read_source
from grpo.launch.rendering import render
from grpo.stack import command
from grpo.stack.json_files import replace
from grpo.stack.problem import UserError

SPLITS = ("train", "eval")
CARD = "card.json"
SHOWN = 3  # of the lines about rows


def prepare(args: argparse.Namespace) -> dict[str, Any]:
    """Write the three files and return the card.

    Raises UserError if a source is unreadable or refused, or a split is empty.
    """
    problems, origins, bad = _read(args)
    problems, repeated, contradictions = merge_repeats(problems)
    problems, left_out = _split(problems, args)
    # Once more: a problem may reach a split both by its rule and as part of a whole source.
    problems, repeated_in_split, contradictions_in_split = merge_repeats(problems)
    bad += contradictions + contradictions_in_split
    if bad and not args.skip_bad:
        remedy = "correct them, or leave them out with --skip-bad"
        if args.labels == "graded":
            own = "for a reward of your own (REWARD), add --labels any"
            remedy = f"{own}; name what precedes an answer, such as ####, with --answer-after; else {remedy}"
        raise _refuse("bad rows", bad, remedy)
    problems, overlapping = leave_out_held_out(problems)
    if overlapping and not args.decontaminate:
        raise _refuse("problems of train that are also in eval", overlapping, "leave them out with --decontaminate")
    left_out |= {"bad rows": bad, "repeated": repeated + repeated_in_split, "also in eval": overlapping}
    if args.prompt_max_len:
        problems, left_out["too long"] = _leave_out_long(problems, args.tokenizer, args.prompt_max_len)
    left_out = {reason: what for reason, what in left_out.items() if what}
    chosen = {split: [problem for problem in problems if problem.split == split] for split in SPLITS}
    for split, members in chosen.items():
        if not members:
            what = f"the {split} split would be empty (left out: {', '.join(left_out) or 'nothing'})"
            remedy = f"give more problems, change --eval-fraction, or name a source for it with --{split}"
            raise UserError(what, remedy)
    return _write(args.out, chosen, {"sources": origins, "left_out": left_out})


def _read(args: argparse.Namespace) -> tuple[list[Problem], list[dict[str, Any]], list[str]]:
    """Return the good problems of all sources, the card's entry for each source, and a line for each bad row."""
    problems: list[Problem] = []
    origins: list[dict[str, Any]] = []
    bad: list[str] = []
    own = Form(args.problem_column, args.answer_column, args.answer_after, args.labels == "graded")
    sources = {None: args.source, "train": args.train, "eval": args.eval}
    for split, name in ((split, name) for split, names in sources.items() for name in names):
        if name == "synthetic":
            problems += _synthetic(split, args)
            origin: dict[str, Any] = {"synthetic": {"train": args.train_count, "eval": args.eval_count}}
        else:
            rows, origin = read_source(name)
            form = own if "file" in origin else Form(is_graded=own.is_graded)
            parsed, wrong = parse_rows(rows, name, split, form)
            problems += parsed
            bad += wrong
        origins.append(origin | {"used_for": split or "both"})
    return problems, origins, bad


def _synthetic(split: str | None, args: argparse.Namespace) -> list[Problem]:
    """Return problems of the synthetic task, which determines their split itself."""
    return [
        Problem(question, str(answer), "synthetic", name, location="synthetic")
        for name, count in (("train", args.train_count), ("eval", args.eval_count))
        for question, answer in synthetic.distinct_problems(name, count)
        if split in (None, name)
    ]


def _split(problems: Sequence[Problem], args: argparse.Namespace) -> tuple[list[Problem], dict[str, Any]]:
    """Return the chosen problems with their splits, and how many were not chosen, by reason."""
    chosen: list[Problem] = []
    skipped: Counter[str] = Counter()
    is_math = "math" in (*args.source, *args.train, *args.eval)  # a file of one's own is used whole
    count = args.math_count or (MATH_COUNT if is_math else len(problems))
    levels = args.levels or (MATH_LEVELS if is_math else ANY_LEVEL)
    for given in (None, *SPLITS):
        some = [one for one in problems if one.split == given]
        some, reasons = choose_math(some, count, levels)
        chosen += assign_splits(some, args.eval_fraction) if given is None else some
        skipped.update(reasons)
    return chosen, dict(skipped)


def _leave_out_long(problems: Sequence[Problem], model: str, limit: int) -> tuple[list[Problem], list[str]]:
    """Return the problems whose prompts have at most `limit` tokens, and a line for each other."""
    rendered = render(model, [one.record["prompt"] for one in problems], {})
    measured = list(zip(problems, (prompt.tokens for prompt in rendered), strict=True))
    lines = [f"{one.location}: has a prompt of {length} tokens" for one, length in measured if length > limit]
    return [one for one, length in measured if length <= limit], lines


def _shorten(lines: Sequence[str]) -> list[str]:
    """Return the first lines about rows, indented, and how many follow."""
    more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return [f"  {line}" for line in [*lines[:SHOWN], *more]]


def _refuse(what: str, lines: Sequence[str], remedy: str) -> UserError:
    return UserError(f"{what}: {len(lines)}", "\n".join([f"{remedy}:", *_shorten(lines)]))


def _write(out: Path, splits: Mapping[str, Sequence[Problem]], about: Mapping[str, Any]) -> dict[str, Any]:
    """Write NAME.jsonl for each split and the card, which is returned. Each comes whole, by renaming.

    The old card goes first and the new one comes last, so that a card always describes the files beside it.
    """
    files: dict[str, Any] = {}
    contents: dict[str, str] = {}
    for split, problems in splits.items():
        content = "".join(json.dumps(one.record, ensure_ascii=False) + "\n" for one in problems)
        contents[f"{split}.jsonl"] = content
        files[f"{split}.jsonl"] = {
            "records": len(problems),
            "sha256": hashlib.sha256(content.encode()).hexdigest(),
            "datasource": dict(sorted(Counter(one.datasource for one in problems).items())),
        }
    card = {"files": files, **about}
    out.mkdir(parents=True, exist_ok=True)
    (out / CARD).unlink(missing_ok=True)
    for name, content in contents.items():
        replace(out / name, content)
    replace(out / CARD, json.dumps(card, indent=2, ensure_ascii=False) + "\n")
    return card


def _print(out: Path, written: dict[str, Any]) -> None:
    for reason, what in written["left_out"].items():
        lines = what if isinstance(what, list) else []
        print(f"left out ({reason}): {len(lines) or what}", *_shorten(lines), sep="\n")
    for name, file in written["files"].items():
        counts = ", ".join(f"{datasource} {count}" for datasource, count in file["datasource"].items())
        print(f"{out / name}: {file['records']} records ({counts})")


def _parser() -> argparse.ArgumentParser:
    parser = command.parser("data.prepare", __doc__)
    add = parser.add_argument
    several: dict[str, Any] = {"nargs": "+", "action": "extend", "default": [], "metavar": "SOURCE"}
    add("--source", **several, help="split into train and eval by the rules")
    add("--train", **several, help="use all of it for training")
    add("--eval", **several, help="use all of it for evaluation")
    add("--out", type=Path, required=True, help="folder for train.jsonl, eval.jsonl, card.json")
    for name in ("problem", "answer"):
        explained = f"column of the {name} in your files; A.B for B in a nested column A (default: {name})"
        add(f"--{name}-column", default=name, metavar="NAME", help=explained)
    add("--answer-after", metavar="TEXT", help="what precedes the answer in its column, such as ####")
    any_label = "any: keep problems and answers as they are, for a reward of your own, instead of checking that the "
    any_label += "grader reads each answer and adding to each problem how to answer (default: graded)"
    add("--labels", choices=("graded", "any"), default="graded", help=any_label)
    add("--eval-fraction", type=float, help="share of --source for eval, also for AIME")
    math_count = "problems with a level to take from each of --source, --train, --eval (default: 45 of the source math)"
    add("--math-count", type=int, metavar="N", help=math_count)
    levels: dict[str, Any] = {"type": int, "nargs": "+", "choices": range(1, 6), "metavar": "LEVEL"}
    add("--levels", **levels, help="levels to take problems from, if they have one (default: 4 5 of the source math)")
    add("--skip-bad", action="store_true", help="leave bad rows out instead of refusing them")
    add("--decontaminate", action="store_true", help="leave problems of eval out of train instead of refusing them")
    add("--prompt-max-len", type=int, metavar="N", help="leave out prompts of more tokens, the run's --prompt_max_len")
    model = "openai/gpt-oss-120b"
    add("--tokenizer", default=model, metavar="MODEL", help=f"folder or hub id, for these tokens (default: {model})")
    add("--train-count", type=int, default=512, help="synthetic only (default: 512)")
    add("--eval-count", type=int, default=128, help="synthetic only (default: 128)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 2, with the reasons on stderr, if the source is refused."""
    args = _parser().parse_args(argv)
    try:
        written = prepare(args)
    except (UserError, OSError) as error:
        print(f"data.prepare: {error}", file=sys.stderr)
        return 2
    _print(args.out, written)
    return 0


if __name__ == "__main__":
    command.run(main, outlives=True)
