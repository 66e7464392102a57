r"""Turns problems of AIME, MATH, a file of your own or the synthetic task into train.jsonl, eval.jsonl and card.json.

    python -m data.prepare --source aime --out data/prepared                                # from the hub: 72 and 18
    python -m data.prepare --source aime.jsonl --train math --skip-bad --out data/prepared  # and 45 of MATH to train on
    python -m data.prepare --source synthetic --out data/prepared --train-count 512
    python -m data.prepare --source mine.csv --labels any --out data/mine                   # for a reward of your own

A source is a .jsonl, .json, .parquet, .csv or .tsv file, `aime` or `math` for the pinned data sets of the hub, or
`synthetic`. Sources of --source are split by fixed rules. Sources of --train and --eval go whole into that split.
docs/data.md has the columns of a file and the rules. Every output line is a record: `prompt` (the user's message),
`label` (JSON with `answer` and `split`), `datasource` and `id`. The same input gives the same bytes, in any row order.

It refuses the following, and lists every place:
- rows that are unreadable, incomplete or not gradable (--skip-bad leaves them out; with --labels any, any answer will
  do);
- problems of train that are also in eval, or nearly (--decontaminate leaves them out of train);
- prompts of more than --prompt-max-len tokens (--drop-long leaves them out).
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data import card, splits, synthetic
from data.checks import check_lengths, check_overlap
from data.problems import Problem, merge_repeats, parse_rows
from data.sources import read_source
from grpo.stack import command
from grpo.stack.counted import format_count
from grpo.stack.problem import UserError


@dataclass(frozen=True)
class Source:
    """A file, `aime`, `math` or `synthetic`; with a split ("train" or "eval") it goes there whole."""

    name: str
    split: str | None = None


@dataclass(frozen=True)
class Options:
    """The options of the command line (see its help); math_count None takes all."""

    eval_fraction: float | None = None
    math_count: int | None = splits.DEFAULT_MATH_COUNT
    levels: Sequence[int] = splits.MATH_LEVELS
    problem_column: str | None = None
    answer_column: str | None = None
    labels: str = "graded"
    skip_bad: bool = False
    decontaminate: bool = False
    tokenizer: str | None = None
    prompt_max_len: int | None = None
    drop_long: bool = False
    train_count: int = 512
    eval_count: int = 128
    seed: int = 0


def prepare(sources: Sequence[Source], out: Path, options: Options | None = None) -> dict[str, Any]:
    """Write the three files into `out` and return the card.

    Raises UserError if a source is unreadable or refused (see the module), or a split is empty.
    """
    options = options or Options()
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file", "name a folder for train.jsonl, eval.jsonl and card.json")
    problems, origins, bad = _read(sources, options)
    problems, repeated, contradictions = merge_repeats(problems)
    rules = splits.describe(problems, options.eval_fraction, options.math_count, options.levels)
    problems, skipped = _split(problems, options)
    # Once more: a problem may reach a split both by its rule and as part of a whole source.
    problems, repeated_in_split, contradictions_in_split = merge_repeats(problems)
    bad += contradictions + contradictions_in_split
    if bad and not options.skip_bad:
        listed = "\n".join(f"  {line}" for line in bad)
        remedy = "correct them, or leave them out with --skip-bad"
        if options.labels == "graded":
            remedy += "; --labels any keeps every answer, for a reward of your own (REWARD)"
        raise UserError(f"{format_count(len(bad), 'bad row')}:\n{listed}", remedy)
    about: dict[str, Any] = {"sources": origins, "rules": rules}
    problems, overlapping, alike = check_overlap(problems, options.decontaminate)
    left_out = {"bad rows": bad, "repeated": repeated + repeated_in_split, "also in eval": overlapping, **skipped}
    if options.tokenizer:
        measured = check_lengths(problems, options.tokenizer, options.prompt_max_len, options.drop_long)
        problems, left_out["too long"], about["prompt_tokens"] = measured
        if left_out["too long"]:
            alike = check_overlap(problems, options.decontaminate)[2]  # of the remaining problems
    chosen = {split: [problem for problem in problems if problem.split == split] for split in ("train", "eval")}
    for split, members in chosen.items():
        if not members:
            remedy = f"give more problems, change --eval-fraction, or name a source for it with --{split}"
            raise UserError(f"the {split} split would be empty (left out: {_summarize_left_out(left_out)})", remedy)
    records = {split: [to_record(problem) for problem in members] for split, members in chosen.items()}
    described = {split: card.counts(members) for split, members in chosen.items()}
    about |= {"left_out": {reason: what for reason, what in left_out.items() if what}, **alike}
    return card.write(out, records, described, about)


def to_record(problem: Problem) -> dict[str, str]:
    """Return the output line of a problem."""
    label = json.dumps({"answer": problem.answer, "split": problem.split}, ensure_ascii=False)
    return {"prompt": problem.prompt, "label": label, "datasource": problem.datasource, "id": problem.id}


def _read(sources: Sequence[Source], options: Options) -> tuple[list[Problem], list[dict[str, Any]], list[str]]:
    """Return the good problems of all sources, the card's entry for each source, and a line for each bad row."""
    problems: list[Problem] = []
    origins: list[dict[str, Any]] = []
    bad: list[str] = []
    for source in sources:
        if source.name == "synthetic":
            problems += _synthetic(source.split, options)
            origin: dict[str, Any] = {"synthetic": {"seed": options.seed}}
        else:
            rows, origin = read_source(source.name)
            named = (("problem", options.problem_column), ("answer", options.answer_column))
            own = {name: column for name, column in named if column and "file" in origin}
            is_graded = options.labels == "graded"
            parsed, wrong = parse_rows(rows, origin.get("file") or origin["hub"], source.split, own, is_graded)
            problems += parsed
            bad += wrong
        origins.append(origin | {"used_for": source.split or "both"})
    return problems, origins, bad


def _synthetic(split: str | None, options: Options) -> list[Problem]:
    """Return problems of the synthetic task, which determines their split itself."""
    counts = {"train": options.train_count, "eval": options.eval_count}
    try:
        return [
            Problem(one.question, str(one.answer), "synthetic", name, source="synthetic", location="synthetic")
            for name, count in counts.items()
            for one in synthetic.distinct_problems(name, count, options.seed)
            if split in (None, name)
        ]
    except ValueError as error:
        raise UserError(f"the synthetic task: {error}", "lower --train-count or --eval-count") from error


def _split(problems: Sequence[Problem], options: Options) -> tuple[list[Problem], dict[str, int]]:
    """Return the chosen problems with their splits, and how many were not chosen, by reason."""
    chosen: list[Problem] = []
    skipped: dict[str, int] = {}
    for given in (None, "train", "eval"):
        some = [one for one in problems if one.split == given]
        some, reasons = splits.choose_math(some, options.math_count, options.levels)
        chosen += splits.split(some, options.eval_fraction) if given is None else some
        for reason, count in reasons.items():
            skipped[reason] = skipped.get(reason, 0) + count
    return chosen, skipped


def _summarize_left_out(left_out: dict[str, Any]) -> str:
    counts = {reason: len(what) if isinstance(what, list) else what for reason, what in left_out.items()}
    return ", ".join(f"{reason}: {count}" for reason, count in counts.items() if count) or "nothing"


def _print(out: Path, written: dict[str, Any]) -> None:
    for reason, what in written["left_out"].items():
        for line in what if isinstance(what, list) else [what]:
            print(f"left out ({reason}): {line}")
    for pair in written["near_duplicates"]:
        print(f"near-duplicates in {pair['split']}: {' and '.join(pair['ids'])}")
    if written["variants"]:
        print(f"groups of problems that differ only in numbers: {len(written['variants'])}, see card.json")
    for split, length in written.get("prompt_tokens", {}).items():
        if split in ("train", "eval"):
            print(f"{split}: prompts have up to {length['max']} tokens, 99% of them up to {length['p99']}")
    for name, file in written["files"].items():
        counts = ", ".join(f"{datasource} {count}" for datasource, count in file["datasource"].items())
        print(f"{out / name}: {file['records']} records ({counts})")


def _count(text: str) -> int | None:
    """Parse a positive number, or None for "all"; argparse words the ValueError itself."""
    if text == "all":
        return None
    if (number := int(text)) < 1:
        raise ValueError
    return number


def _parser() -> argparse.ArgumentParser:
    """Return the parser. It leaves out options that are not given: :class:`Options` has their defaults."""
    parser = command.parser("data.prepare", __doc__)
    several: dict[str, Any] = {"nargs": "+", "action": "extend", "default": [], "metavar": "SOURCE"}
    parser.add_argument("--source", **several, help="split into train and eval by the rules")
    parser.add_argument("--train", **several, help="use all of it for training")
    parser.add_argument("--eval", **several, help="use all of it for evaluation")
    parser.add_argument("--out", type=Path, required=True, help="folder for train.jsonl, eval.jsonl, card.json")
    parser.argument_default = argparse.SUPPRESS
    parser.add_argument("--eval-fraction", type=float, help="share of --source for eval, also for AIME")
    parser.add_argument(
        "--math-count",
        type=_count,
        metavar="N|all",
        help="number of problems with a level to take from each of --source, --train, --eval "
        f"(default {Options.math_count})",
    )
    parser.add_argument(
        "--levels",
        type=int,
        nargs="+",
        choices=range(1, 6),
        metavar="LEVEL",
        help="levels to take problems from, if they have one (default: 4 5)",
    )
    parser.add_argument("--problem-column", metavar="NAME", help="column of the problem in your files")
    parser.add_argument("--answer-column", metavar="NAME", help="column of the answer in your files")
    parser.add_argument(
        "--labels",
        choices=("graded", "any"),
        help="any: keep problems and answers as they are, for a reward of your own, instead of checking that the "
        "grader reads each answer and adding to each problem how to answer (default: graded)",
    )
    parser.add_argument("--skip-bad", action="store_true", help="skip bad rows instead of refusing them")
    parser.add_argument("--decontaminate", action="store_true", help="remove problems of eval from train")
    parser.add_argument("--tokenizer", help="model folder or hub id: count the tokens of the prompts")
    parser.add_argument(
        "--prompt-max-len", type=int, help="limit in tokens, the run's PROMPT_MAX_LEN (with --tokenizer)"
    )
    parser.add_argument("--drop-long", action="store_true", help="skip longer prompts instead of refusing them")
    parser.add_argument("--train-count", type=int, help=f"synthetic only (default {Options.train_count})")
    parser.add_argument("--eval-count", type=int, help=f"synthetic only (default {Options.eval_count})")
    parser.add_argument("--seed", type=int, help=f"synthetic only (default {Options.seed})")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return 2, with the reasons on stderr, if the source is refused."""
    parser = _parser()
    arguments = vars(parser.parse_args(argv))
    out = arguments.pop("out")
    sources = [Source(name) for name in arguments.pop("source")]
    sources += [Source(name, split) for split in ("train", "eval") for name in arguments.pop(split)]
    if not sources:
        parser.error("give --source, or --train and --eval")
    options = Options(**arguments)
    if (options.prompt_max_len or options.drop_long) and not options.tokenizer:
        parser.error("--prompt-max-len and --drop-long need --tokenizer")
    try:
        written = prepare(sources, out, options)
    except (UserError, OSError) as error:
        print(f"data.prepare: {error}", file=sys.stderr)
        return 2
    _print(out, written)
    return 0


if __name__ == "__main__":
    command.print_plainly()
    sys.exit(main())
