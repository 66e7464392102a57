"""The data files of a run: prompts and labels."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from grpo.launch import data_files, prompt_lengths
from grpo.launch.checks.model import can_format_chats
from grpo.launch.config import Config
from grpo.launch.data_files import Record
from grpo.rollout.chat_template import variables
from grpo.rollout.multi_turn.settings import has_environment
from grpo.run.measure import OUR_REWARD
from grpo.stack.counted import counted
from grpo.stack.problem import Problem, UserError

_VARIABLES = {"train": "TRAIN_DATA", "eval": "EVAL_DATA"}


def check_data(config: Config, is_missed: bool = True) -> Iterator[Problem]:
    """Read both data files. With too few prompts, a stock trainer ends without a step and without an error.

    Args:
        is_missed: whether a file that does not exist is a problem.
    """
    args = config.args
    files = {"train": args.prompt_data, "eval": args.eval_dataset}
    files = {split: path for split, path in files.items() if is_missed or not path or Path(path).exists()}
    read: dict[str, list[Record]] = {}
    for split, path in files.items():
        if not path:
            if split == "train":
                yield Problem("TRAIN_DATA is empty", "set it to a .jsonl file; python -m data.prepare writes one")
            continue
        labels_of = split if has_own_reward(config) and not has_environment(config.args) else None
        try:
            read[split] = data_files.read_records(Path(path), args.input_key, args.label_key, labels_of)
        except UserError as error:
            yield Problem(f"{_VARIABLES[split]}: {error.problem.what}", error.problem.remedy)
    count = len(read.get("train", ()))
    if 0 < count < args.rollout_batch_size:
        yield Problem(
            f"{args.prompt_data} has {counted(count, 'prompt')}, but a rollout needs {args.rollout_batch_size}: "
            "no step would run",
            f"set ROLLOUT_BATCH_SIZE to {count} or less, or use more data",
        )
    for split, records in read.items():
        yield from check_repeats(files[split], records, split)
    yield from check_lengths(config, {files[split]: records for split, records in read.items()})
    yield from check_leaks(files, read.get("train", ()), read.get("eval", ()))


def check_repeats(file: str, records: Sequence[Record], split: str) -> Iterator[Problem]:
    """Find duplicate problems: seeds and evaluation records are keyed by the prompt, results by the id."""
    prompts = _repeats((record.prompt, record.line) for record in records)
    ids = _repeats((record.id, record.line) for record in records if record.id and split == "eval")
    repeated = {"prompt": prompts, "id": [pair for pair in ids if pair not in prompts]}
    why = {"train": "both would draw the same samples", "eval": "both would count as one problem"}[split]
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


def check_lengths(config: Config, files: Mapping[str, Sequence[Record]]) -> Iterator[Problem]:
    """Find prompts of more than PROMPT_MAX_LEN tokens: OpenRLHF silently cuts off their beginning."""
    args = config.args
    if not args.apply_chat_template or not can_format_chats(Path(args.pretrain)):
        return
    try:
        names = variables(args.reasoning_effort, args.template_variables)
    except UserError:
        return  # check_flags explains it
    prompts = [json.loads(record.prompt) for records in files.values() for record in records]
    if not prompts:
        return
    try:
        lengths = iter(prompt_lengths.count(args.pretrain, prompts, names))
    except UserError as error:
        yield error.problem
        return
    for file, records in files.items():
        of_file = list(islice(lengths, len(records)))
        too_long = [record.line for record, size in zip(records, of_file, strict=True) if size > args.prompt_max_len]
        if too_long:
            yield Problem(
                f"{file}: {len(too_long)} of {len(records)} prompts have more than PROMPT_MAX_LEN "
                f"{args.prompt_max_len} tokens, for example line {too_long[0]}: their beginning would be cut off",
                f"set PROMPT_MAX_LEN to {max(of_file)}, or remove them with python -m data.prepare --drop-long",
            )


def check_leaks(files: dict[str, str], train: Sequence[Record], held_out: Sequence[Record]) -> Iterator[Problem]:
    """Find training prompts that are also held out."""
    lines = {record.prompt: record.line for record in held_out}
    leaked = [record for record in train if record.prompt in lines]
    if leaked:
        yield Problem(
            f"{files['train']}, line {leaked[0].line}: the prompt is also in {files['eval']}, line "
            f"{lines[leaked[0].prompt]}, as are {len(leaked) - 1} others",
            "python -m data.prepare --decontaminate removes problems of eval from train",
        )


def has_own_reward(config: Config) -> bool:
    """Return whether the reward function is this project's, which reads labels and may have a judge."""
    return Path(config.args.remote_rm_url or "").resolve() == OUR_REWARD
