r"""Turns a local file of problems, or the synthetic task, into train.jsonl, eval.jsonl and card.json.

    python -m data.prepare --source aime.jsonl --out data/prepared/aime
    python -m data.prepare --source synthetic --out data/prepared/synthetic --train-count 512

data/problems.py says what a source looks like. Every output line is a record: `prompt` (the user's message),
`label` (JSON with `answer` and `split`), `datasource` and `id`. The split is the same on every run:

- AIME: each paper gives three of its 15 problems to eval, one of each third (easy, middle, hard). With
  k = (2 * year + contest) mod 5 these are the numbers 1 + k, 6 + (k + 3) mod 5 and 11 + (k + 1) mod 5, so
  five papers in a row hold out every number once. Six papers give 72 and 18. A problem's split depends on its
  place in the contest alone: a file with more years does not move it.
- Otherwise, or with --eval-fraction: the problems with the lowest SHA-256, that share of them (default 0.2).
"""

import argparse
import hashlib
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from data import synthetic
from data.problems import Problem, SourceError, read_problems

INSTRUCTION = "Solve the problem. Put the final answer in \\boxed{}."
AIME_INSTRUCTION = "Solve the problem. The answer is an integer from 0 to 999; put it in \\boxed{}."
DEFAULT_EVAL_FRACTION = 0.2


def prepare(source: Path, out: Path, eval_fraction: float | None = None, skip_bad: bool = False) -> dict[str, Any]:
    """Writes the three files into `out` and returns the card.

    eval_fraction: split by hash with this share for eval, instead of the AIME rule.
    skip_bad: leave bad rows out and name them in the card, instead of refusing the source.
    Raises SourceError for a source that cannot be read, has bad rows or gives an empty split.
    """
    problems, bad = read_problems(source)
    if bad and not skip_bad:
        shown = "\n".join(f"  {line}" for line in bad[:20])
        more = f"\n  and {len(bad) - 20} more" if len(bad) > 20 else ""
        remedy = "correct them, or leave them out with --skip-bad"
        raise SourceError(f"{source} has {len(bad)} bad rows; {remedy}:\n{shown}{more}")
    if eval_fraction is None and all(problem.paper for problem in problems):
        held_out = {problem.id for problem in problems if problem.paper and in_aime_eval(*problem.paper)}
        rule = "AIME: three problems of each paper"
    else:
        fraction = DEFAULT_EVAL_FRACTION if eval_fraction is None else eval_fraction
        if not 0 < fraction < 1:
            raise SourceError(f"the eval fraction must lie between 0 and 1, not {fraction}")
        ranked = sorted(problems, key=lambda problem: problem.digest)
        held_out = {problem.id for problem in ranked[: round(fraction * len(ranked))]}
        rule = f"lowest SHA-256, {fraction:g} of the problems"
    records: dict[str, list[dict[str, str]]] = {"train": [], "eval": []}
    for problem in problems:
        split = "eval" if problem.id in held_out else "train"
        records[split].append(to_record(problem, split))
    origin = {"file": source.name, "sha256": _sha256(source.read_bytes())}
    return _write(out, records, {"source": origin, "rule": rule, "left_out": bad})


def prepare_synthetic(out: Path, train_count: int, eval_count: int, seed: int = 0) -> dict[str, Any]:
    """Writes the synthetic task in the same form and returns the card.

    Its prompts stay as they are, without an instruction: they are what the tiny model was warmed up on.
    """
    records = {}
    for split, count in (("train", train_count), ("eval", eval_count)):
        chosen = synthetic.distinct_problems(split, count, seed)
        if len(chosen) < count:
            raise SourceError(f"the synthetic task gave only {len(chosen)} of {count} problems for {split}")
        records[split] = [one.record() | {"label": _label(str(one.answer), split)} for one in chosen]
    origin = {"synthetic": {"seed": seed}}
    return _write(out, records, {"source": origin, "rule": "by the task", "left_out": []})


def in_aime_eval(year: int, contest: int, number: int) -> bool:
    """Whether a problem is held out; the rule is in the module's docstring."""
    third, place = divmod(number - 1, 5)
    return place == (2 * year + contest + 3 * third) % 5


def to_record(problem: Problem, split: str) -> dict[str, str]:
    """The output line of a problem."""
    instruction = AIME_INSTRUCTION if problem.paper else INSTRUCTION
    return {
        "prompt": f"{problem.text}\n\n{instruction}",
        "label": _label(problem.answer, split),
        "datasource": problem.datasource,
        "id": problem.id,
    }


def _label(answer: str, split: str) -> str:
    return json.dumps({"answer": answer, "split": split}, ensure_ascii=False)


def _write(out: Path, records: dict[str, list[dict[str, str]]], about: dict[str, Any]) -> dict[str, Any]:
    """Writes both splits and the card by renaming; the old card goes first, the new one comes last.

    So a card that exists describes the files beside it, whenever the writing was interrupted.
    """
    files, contents = {}, {}
    for split, chosen in records.items():
        if not chosen:
            raise SourceError(f"the {split} split would be empty: give more problems, or change --eval-fraction")
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in chosen)
        contents[f"{split}.jsonl"] = text.encode()
        files[f"{split}.jsonl"] = {
            "records": len(chosen),
            "datasources": dict(Counter(record["datasource"] for record in chosen)),
            "sha256": _sha256(text.encode()),
        }
    card = about | {"files": files}
    out.mkdir(parents=True, exist_ok=True)
    (out / "card.json").unlink(missing_ok=True)
    for name, content in contents.items():
        _replace(out / name, content)
    _replace(out / "card.json", (json.dumps(card, indent=2, ensure_ascii=False) + "\n").encode())
    return card


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main(argv: list[str] | None = None) -> int:
    """The command line; returns 1, with the reasons on stderr, when the source is refused."""
    parser = argparse.ArgumentParser(
        prog="python -m data.prepare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--source", required=True, help="a .jsonl, .json or .parquet file, or `synthetic`")
    parser.add_argument("--out", type=Path, required=True, help="folder for train.jsonl, eval.jsonl, card.json")
    parser.add_argument("--eval-fraction", type=float, help="split by hash, with this share for eval")
    parser.add_argument("--skip-bad", action="store_true", help="leave bad rows out instead of refusing the file")
    parser.add_argument("--train-count", type=int, default=512, help="synthetic only (default 512)")
    parser.add_argument("--eval-count", type=int, default=128, help="synthetic only (default 128)")
    parser.add_argument("--seed", type=int, default=0, help="synthetic only (default 0)")
    arguments = parser.parse_args(argv)
    try:
        if arguments.source == "synthetic":
            card = prepare_synthetic(arguments.out, arguments.train_count, arguments.eval_count, arguments.seed)
        else:
            card = prepare(Path(arguments.source), arguments.out, arguments.eval_fraction, arguments.skip_bad)
    except (SourceError, OSError) as error:
        print(f"data.prepare: {error}", file=sys.stderr)
        return 1
    for line in card["left_out"]:
        print(f"left out: {line}", file=sys.stderr)
    for name, file in card["files"].items():
        print(f"{arguments.out / name}: {file['records']} records ({', '.join(file['datasources'])})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
