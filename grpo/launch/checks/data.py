"""The data files of a run: prompts and labels."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from grpo.environments.settings import has_environment
from grpo.launch import data_files, rendering
from grpo.launch.checks.batches import check_batches, check_warm_up
from grpo.launch.checks.model import can_format_chats
from grpo.launch.config import Config
from grpo.launch.data_files import Record
from grpo.launch.rendering import Rendered
from grpo.rollout.chat_template import variables
from grpo.rollout.problem_files import normalize
from grpo.run.measure import OUR_REWARD
from grpo.stack.counted import format_count
from grpo.stack.problem import Problem, UserError

_BOUND = re.compile(r"\s*(<\|\w+\|>)\s*")  # of a rendered message
_VARIABLES = {"train": "TRAIN_DATA", "eval": "EVAL_DATA"}


def check_data(config: Config, is_missed: bool = True) -> Iterator[Problem]:
    """Read both data files, and check batch sizes with them.

    Args:
        is_missed: whether a file that does not exist is a problem.
    """
    args = config.args
    files = {"train": args.prompt_data, "eval": args.eval_dataset}
    apart = _suggest_hold_out(config)
    if args.prompt_data and args.eval_dataset and Path(args.prompt_data).resolve() == Path(args.eval_dataset).resolve():
        yield Problem(f"TRAIN_DATA and EVAL_DATA are both {args.prompt_data}: nothing would be held out", apart)
        del files["eval"]
    files = {split: path for split, path in files.items() if is_missed or not path or Path(path).exists()}
    read: dict[str, list[Record]] = {}
    for split, path in files.items():
        if not path:
            if split == "train":
                yield Problem("TRAIN_DATA is empty", "set it to a .jsonl file; python -m data.prepare writes one")
            continue
        if split == "eval" and "train" in read and not Path(path).exists():
            yield Problem(f"EVAL_DATA: {path} does not exist", f"set EVAL_DATA to a .jsonl file, or {apart}")
            continue
        labels_of = split if is_graded_by_us(config) else None
        try:
            read[split] = data_files.read_records(Path(path), args.input_key, args.label_key, labels_of)
        except UserError as error:
            yield Problem(f"{_VARIABLES[split]}: {error.problem.what}", error.problem.remedy)
    yield from check_batches(config, len(read["train"]) if "train" in read else None)
    if "train" in read:
        yield from check_warm_up(config, len(read["train"]))
    try:
        rendered = render(config, read)
    except UserError as error:
        yield error.problem
        return
    for split, records in read.items():
        yield from check_repeats(files[split], records, rendered[split], split)
        yield from check_lengths(files[split], records, rendered[split], args.prompt_max_len)
    if read.keys() == {"train", "eval"}:
        yield from check_leaks(files, read, rendered, apart)


def _suggest_hold_out(config: Config) -> str:
    """Return how to hold out problems of TRAIN_DATA. `data.prepare` reads what our grader reads."""
    if not is_graded_by_us(config):
        return "move some lines of TRAIN_DATA to a new file, and set EVAL_DATA to it"
    args = config.args
    options = ["--source", args.prompt_data or "FILE", "--problem-column", args.input_key]
    options += ["--answer-column", args.label_key or "label"]
    return (
        f"hold some out: python -m data.prepare {shlex.join(options)} --out FOLDER; "
        "then set TRAIN_DATA=FOLDER/train.jsonl EVAL_DATA=FOLDER/eval.jsonl"
    )


def render(config: Config, read: Mapping[str, Sequence[Record]]) -> dict[str, list[Rendered]]:
    """Return the prompts of each split as the engines get them.

    Their length is 0 where an environment renders them, and before the model is here. Then the messages stand for them.

    Raises:
        UserError: if they cannot be rendered.
    """
    args, prompts = config.args, [record.prompt for records in read.values() for record in records]
    try:
        given = variables(args.reasoning_effort, args.template_variables, args.template_date)
    except UserError:  # check_flags explains it
        given = {}
    if prompts and args.apply_chat_template and can_format_chats(Path(args.pretrain)):
        rendered = iter(rendering.render(args.pretrain, prompts, given))
    else:
        rendered = (Rendered(0, _flatten_prompt(prompt)) for prompt in prompts)
    return {split: list(islice(rendered, len(records))) for split, records in read.items()}


def _flatten_prompt(prompt: Any) -> str:
    """Return the roles and texts of a prompt's messages."""
    if not isinstance(prompt, list):
        return f"user {prompt}"
    return "\n".join(f"{each.get('role')} {each.get('content')}" for each in prompt if isinstance(each, dict))


def check_repeats(file: str, records: Sequence[Record], rendered: Sequence[Rendered], split: str) -> Iterator[Problem]:
    """Find duplicate problems: seeds and evaluation records are keyed by the prompt, results by the id."""
    prompts = _repeats((each.text, record.line) for record, each in zip(records, rendered, strict=True))
    ids = _repeats((record.id, record.line) for record in records if record.id and split == "eval")
    repeated = {"prompt": prompts, "id": [pair for pair in ids if pair not in prompts]}
    why = {"train": "both would draw the same rollouts", "eval": "both would count as one problem"}[split]
    for what, pairs in repeated.items():
        if pairs:
            first, again = pairs[0]
            others = f", and so do {len(pairs) - 1} others" if len(pairs) > 1 else ""
            yield Problem(
                f"{file}, line {again} repeats the {what} of line {first}{others}: {why}",
                "remove one of them; python -m data.prepare keeps each problem once",
            )


def _repeats(keys: Iterable[tuple[str, int]]) -> list[tuple[int, int]]:
    """Return the lines of each duplicate: the first with this key, and this one."""
    first: dict[str, int] = {}
    return [(first[key], line) for key, line in keys if first.setdefault(key, line) != line]


def check_lengths(file: str, records: Sequence[Record], rendered: Sequence[Rendered], limit: int) -> Iterator[Problem]:
    """Find prompts of more than PROMPT_MAX_LEN tokens: OpenRLHF cuts off their beginning, and only logs it."""
    too_long = [record.line for record, each in zip(records, rendered, strict=True) if each.tokens > limit]
    if too_long:
        yield Problem(
            f"{file}: {len(too_long)} of {len(records)} prompts have more than PROMPT_MAX_LEN {limit} tokens, for "
            f"example line {too_long[0]}: their beginning would be cut off",
            f"set PROMPT_MAX_LEN to {max(each.tokens for each in rendered)}, or leave them out with python -m "
            "data.prepare --prompt-max-len",
        )


def check_leaks(
    files: Mapping[str, str],
    read: Mapping[str, Sequence[Record]],
    rendered: Mapping[str, Sequence[Rendered]],
    apart: str,
) -> Iterator[Problem]:
    """Find training prompts that are also held out, in the same form or another.

    Args:
        apart: the remedy if all of them are.
    """
    texts = {split: [normalize(_BOUND.sub(r"\1", each.text)) for each in rendered[split]] for split in read}
    lines = dict(zip(texts["eval"], (record.line for record in read["eval"]), strict=True))
    train = zip(read["train"], texts["train"], strict=True)
    leaked = [(record.line, lines[text]) for record, text in train if text in lines]
    if leaked:
        (line, other), *more = leaked
        others = f"; so are those of {format_count(len(more), 'other line')}" if more else ""
        yield Problem(
            f"{files['train']}, line {line}: the prompt is also in {files['eval']}, line {other}{others}",
            apart
            if len(leaked) == len(read["train"])
            else "python -m data.prepare --decontaminate removes problems of eval from train",
        )


def is_graded_by_us(config: Config) -> bool:
    """Return whether labels are for our grader."""
    return uses_our_reward(config) and not has_environment(config.args)


def uses_our_reward(config: Config) -> bool:
    """Return whether the reward function is this project's, which reads labels and may have a judge."""
    return Path(config.args.remote_rm_url or "").resolve() == OUR_REWARD
