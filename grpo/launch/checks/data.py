"""The data files of a run, JSON lines with a prompt and a label, and the batches that are made of them."""

import math
import re
import shlex
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grpo.environments.settings import has_environment
from grpo.flags import boxes
from grpo.launch import rendering
from grpo.launch.checks.model import can_format_chats
from grpo.launch.config import Config
from grpo.launch.flags import GROUP_ESTIMATORS
from grpo.launch.rendering import Rendered
from grpo.rollout.chat_template import variables
from grpo.rollout.problem_files import normalize, read_rows
from grpo.run.eval_metric import OUR_REWARD
from grpo.stack.command import format_count
from grpo.stack.problem import Problem, UserError
from grpo.train.optimizer_steps import LearningRate, count_steps, count_updates
from reward.answers import LabelError, is_gradable, parse_label

_NAME = "name a .jsonl file; python -m data.prepare writes one"
_GROUP = 8  # rollouts of a prompt that are proposed
_BOUND = re.compile(r"\s*(<\|\w+\|>)\s*")  # of a rendered message


class Record(NamedTuple):
    """One record of a data file: its line (from 1), its prompt (text or messages), and its id ("" if missing)."""

    line: int
    prompt: Any
    id: str


def check_data(config: Config, is_missed: bool = True) -> Iterator[Problem]:
    """Read both data files, and check batch sizes with them. With `is_missed`, a missing file is a problem."""
    args = config.args
    read: dict[str, list[Record]] = {}
    for split, path in (("train", args.prompt_data), ("eval", args.eval_dataset)):
        if not path or not (is_missed or Path(path).exists() or Path(path).suffix != ".jsonl"):
            continue
        labels_of = split if uses_our_reward(config) and not has_environment(args) else None
        try:
            read[split] = read_records(Path(path), args.input_key, args.label_key, labels_of)
        except UserError as error:
            is_held_out = "train" not in read or (Path(path).exists() and path != args.prompt_data)
            remedy = error.problem.remedy if is_held_out else _suggest_hold_out(config)
            yield Problem(f"{split.upper()}_DATA: {error.problem.what}", remedy)
    if not (is_missed and boxes.find_lack_here(vars(args))):  # which changes the number of ranks
        yield from check_batches(config, len(read["train"]) if "train" in read else None)
    try:
        rendered = _render(config, read)
    except UserError as error:
        yield error.problem
        return
    for split, records in read.items():
        yield from _check_prompts(split, records, rendered[split], args.prompt_max_len)
    if read.keys() == {"train", "eval"}:
        yield from _check_leaks(config, read, rendered)


def uses_our_reward(config: Config) -> bool:
    """Return whether the reward function is this project's, which reads labels and may have a judge."""
    return Path(config.args.remote_rm_url or "").resolve() == OUR_REWARD


def read_records(path: Path, input_key: str, label_key: str | None, split: str | None = None) -> list[Record]:
    """Check every line of a `.jsonl` file and return the records.

    Args:
        split: "train" or "eval", which every label must match; None if labels belong to another reward function.

    Raises:
        UserError: if the file is missing or empty, or a line is invalid JSON, lacks a field or has a wrong label.
    """
    if path.suffix != ".jsonl":
        raise UserError(f"{path} is not a .jsonl file", _NAME)
    records = []
    try:
        for number, row in read_rows(path, input_key, label_key):
            if split:
                _check_label(row.get(label_key or ""), f"{path}, line {number}", split)
            records.append(Record(number, row[input_key], str(row.get("id") or "")))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist", _NAME) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})", _NAME) from None
    if not records:
        raise UserError(f"{path} is empty", _NAME)
    return records


def _check_label(label: Any, where: str, split: str) -> None:
    """Raise UserError for a label that our reward function cannot use: it judges train samples, never eval samples."""
    form = f'{{"answer": "42", "split": "{split}"}}' + (", or the gold answer alone" if split == "train" else "")
    remedy = f"a label of {split.upper()}_DATA is {form}; python -m data.prepare writes such labels, but with "
    remedy += "--labels any, which is for a reward of your own: then set REWARD"
    try:
        answer, label_split = parse_label(label)
    except LabelError as error:
        raise UserError(f"{where}: {error.what}", remedy) from None
    if label_split != split:
        what = f"the label belongs to the {label_split} split, not to {split} (a plain answer counts as train)"
        raise UserError(f"{where}: {what}", remedy)
    if not is_gradable(answer):
        raise UserError(
            f"{where}: the grader cannot read the answer {answer!r}, so every response would be wrong",
            "write numbers in digits, and put words and dates in \\text{...}; python -m data.prepare --skip-bad leaves "
            "out such problems, and a reward of your own (REWARD) reads any label",
        )


def check_batches(config: Config, prompts: int | None = None) -> Iterator[Problem]:
    """Refuse sizes that do not divide, with sizes that do. OpenRLHF asserts most of it only after loading.

    Args:
        prompts: of TRAIN_DATA. With too few, a stock trainer ends without a step and without an error.
    """
    args, ranks, rollouts = config.args, config.actor_ranks, config.rollouts_per_step
    fitting = _fit_sizes(args, ranks, prompts)
    of_step = (
        f"of {config.gpus} GPUs, the actor has {ranks}, but a global step has {rollouts} rollouts: ranks with less "
    )
    of_step += "work would wait forever"
    if is_short := prompts is not None and prompts < args.rollout_batch_size:
        of_step = f"TRAIN_DATA has {format_count(prompts or 0, 'prompt')}, but a global step needs "
        of_step += f"{args.rollout_batch_size}"
    of_group = f"{args.advantage_estimator} compares the rollouts of a prompt, but --n_samples_per_prompt is 1"
    batch = f"--train_batch_size {args.train_batch_size}"
    faults = {
        "n_samples_per_prompt": of_group if args.n_samples_per_prompt < 2 else of_step,
        "rollout_batch_size": of_step,
        "train_batch_size": f"{batch} does not divide the {rollouts} rollouts of a global step into equal batches for "
        f"{format_count(ranks, 'rank')}",
        "micro_train_batch_size": f"{batch} is not a multiple of --micro_train_batch_size x ranks = "
        f"{args.micro_train_batch_size * ranks}",
        "micro_rollout_batch_size": f"--micro_rollout_batch_size {args.micro_rollout_batch_size} does not divide the "
        f"{rollouts // ranks} rollouts of a rank",
    }
    if changed := [name for name in faults if getattr(args, name) != fitting[name]]:
        more = ", or use more data" if is_short else ""
        yield Problem(faults[changed[0]], f"set {' '.join(f'--{name} {fitting[name]}' for name in changed)}{more}")
    fitted = Namespace(**vars(args) | fitting)
    length = count_steps(fitted, prompts) * count_updates(fitted) if prompts else 0
    if args.lr_scheduler != "constant" and LearningRate.of_run(fitted, length).warm_up >= length > 1:
        ratio = f"--lr_warmup_ratio {args.lr_warmup_ratio:g}"
        yield Problem(f"{ratio}: all {length} optimizer steps of the run would be its warmup", "give 0.03")


def _fit_sizes(args: Namespace, ranks: int, prompts: int | None) -> dict[str, int]:
    """Return the sizes that a run can have: those given if they divide, else smaller ones, or the nearest batch.

    Each rank gets as many rollouts as the others, in whole batches and micro-batches.
    """
    group = args.n_samples_per_prompt
    if group < 2 and args.advantage_estimator in GROUP_ESTIMATORS:
        group = _GROUP
    drawn = args.rollout_batch_size if prompts is None else min(args.rollout_batch_size, prompts)
    unit = ranks // math.gcd(group, ranks)  # prompts
    if prompts is not None and prompts < unit:
        group, unit = math.lcm(group, ranks), 1
    drawn = max(unit, drawn // unit * unit)
    rollouts = drawn * group
    batches = [size for size in range(ranks, rollouts + 1, ranks) if rollouts % size == 0]
    batch = min(batches, key=lambda size: (abs(size - args.train_batch_size), -size))
    return {
        "n_samples_per_prompt": group,
        "rollout_batch_size": drawn,
        "train_batch_size": batch,
        "micro_train_batch_size": math.gcd(args.micro_train_batch_size, batch // ranks),
        "micro_rollout_batch_size": math.gcd(args.micro_rollout_batch_size, rollouts // ranks),
    }


def _suggest_hold_out(config: Config) -> str:
    """Return how to hold out problems of TRAIN_DATA. `data.prepare` reads what our grader reads."""
    args = config.args
    if not uses_our_reward(config) or has_environment(args):
        return "move some lines of TRAIN_DATA to a new file, and set EVAL_DATA to it"
    columns = ["--problem-column", args.input_key, "--answer-column", args.label_key or "label"]
    return (
        f"hold some out: python -m data.prepare {shlex.join(['--source', args.prompt_data, *columns])} --out FOLDER; "
        "then set TRAIN_DATA=FOLDER/train.jsonl EVAL_DATA=FOLDER/eval.jsonl"
    )


def _render(config: Config, read: Mapping[str, Sequence[Record]]) -> dict[str, list[Rendered]]:
    """Return the prompts of each split as the engines get them. Raises UserError if they cannot be rendered.

    Their length is 0 where an environment renders them, and before the model is here.
    """
    args, prompts = config.args, [record.prompt for records in read.values() for record in records]
    rendered = [Rendered(0, str(prompt)) for prompt in prompts]
    if prompts and args.apply_chat_template and can_format_chats(Path(args.pretrain)):
        given = variables(args.reasoning_effort, args.template_variables, args.template_date)
        rendered = rendering.render(args.pretrain, prompts, given)  # one process for both splits
    count = len(read.get("train", ()))
    return {split: rendered[:count] if split == "train" else rendered[count:] for split in read}


def _check_prompts(
    split: str, records: Sequence[Record], rendered: Sequence[Rendered], limit: int
) -> Iterator[Problem]:
    """Find prompts that OpenRLHF would cut, and duplicates: seeds and records are keyed by prompt, results by id."""
    if too_long := [record.line for record, each in zip(records, rendered, strict=True) if each.tokens > limit]:
        yield Problem(
            f"{split.upper()}_DATA: {len(too_long)} of {len(records)} prompts have more than --prompt_max_len {limit} "
            f"tokens, for example line {too_long[0]}: their beginning would be cut off",
            f"set --prompt_max_len to {max(each.tokens for each in rendered)}, or leave them out with python -m "
            "data.prepare --prompt-max-len",
        )
    first: dict[tuple[str, str], int] = {}
    for record, each in zip(records, rendered, strict=True):
        for key in (("prompt", each.text), ("id", record.id if split == "eval" else "")):
            if key[1] and (line := first.setdefault(key, record.line)) != record.line:
                what = f"{split.upper()}_DATA: line {record.line} repeats the {key[0]} of line {line}"
                yield Problem(what, "remove one of them; python -m data.prepare keeps each problem once")
                return


def _check_leaks(
    config: Config, read: Mapping[str, Sequence[Record]], rendered: Mapping[str, Sequence[Rendered]]
) -> Iterator[Problem]:
    """Find training prompts that are also held out, in the same form or another."""
    texts = {split: [normalize(_BOUND.sub(r"\1", each.text)) for each in rendered[split]] for split in read}
    lines = dict(zip(texts["eval"], (record.line for record in read["eval"]), strict=True))
    train = zip(read["train"], texts["train"], strict=True)
    if leaked := [(record.line, lines[text]) for record, text in train if text in lines]:
        (line, other), *more = leaked
        others = f"; so are those of {format_count(len(more), 'other line')}" if more else ""
        remedy = "python -m data.prepare --decontaminate removes problems of eval from train"
        if len(leaked) == len(read["train"]):
            remedy = _suggest_hold_out(config)
        yield Problem(f"TRAIN_DATA: the prompt of line {line} is also in EVAL_DATA, line {other}{others}", remedy)
