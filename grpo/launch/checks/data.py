"""The data files of a run, and the batches that are made of them."""

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from grpo.environments.settings import has_environment
from grpo.launch import data_files, rendering
from grpo.launch.checks.model import can_format_chats
from grpo.launch.config import Config
from grpo.launch.data_files import Record
from grpo.launch.flags import GROUP_ESTIMATORS
from grpo.launch.rendering import Rendered
from grpo.rollout.chat_template import variables
from grpo.rollout.problem_files import normalize
from grpo.run.eval_metric import OUR_REWARD
from grpo.stack.command import format_count
from grpo.stack.problem import Problem, UserError
from grpo.train.optimizer_steps import LearningRate, count_steps, count_updates

_MICRO = ("micro_train_batch_size", "micro_rollout_batch_size")
_BOUND = re.compile(r"\s*(<\|\w+\|>)\s*")  # of a rendered message


def check_data(config: Config, is_missed: bool = True) -> Iterator[Problem]:
    """Read both data files, and check batch sizes with them.

    Args:
        is_missed: whether a file that does not exist is a problem.
    """
    args = config.args
    read: dict[str, list[Record]] = {}
    for split, path in (("train", args.prompt_data), ("eval", args.eval_dataset)):
        if not path or not (is_missed or Path(path).exists()):
            continue
        labels_of = split if uses_our_reward(config) and not has_environment(args) else None
        try:
            read[split] = data_files.read_records(Path(path), args.input_key, args.label_key, labels_of)
        except UserError as error:
            is_held_out = "train" not in read or (Path(path).exists() and path != args.prompt_data)
            remedy = error.problem.remedy if is_held_out else _suggest_hold_out(config)
            yield Problem(f"{split.upper()}_DATA: {error.problem.what}", remedy)
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


def check_batches(config: Config, prompts: int | None = None) -> Iterator[Problem]:
    """Refuse sizes that do not divide; most of this is asserted only after loading.

    Args:
        prompts: of TRAIN_DATA. With too few, a stock trainer ends without a step and without an error.
    """
    args, rollouts, ranks = config.args, config.rollouts_per_step, config.actor_ranks
    least, share = args.micro_train_batch_size * ranks, rollouts // ranks
    if prompts is not None and prompts < args.rollout_batch_size:
        what = f"TRAIN_DATA has {format_count(prompts, 'prompt')}, but a global step needs {args.rollout_batch_size}"
        yield Problem(what, f"set --rollout_batch_size to at most {prompts}, or use more data")
    if args.n_samples_per_prompt < 2 and args.advantage_estimator in GROUP_ESTIMATORS:
        yield Problem(f"{args.advantage_estimator} compares the rollouts of a prompt", "set --n_samples_per_prompt 8")
        return  # the sizes of batches follow from it
    if rollouts % ranks:
        what = f"a global step has {rollouts} rollouts for {ranks} ranks: those with less work would wait forever"
        yield Problem(what, "make --rollout_batch_size x --n_samples_per_prompt a multiple of the ranks")
        return
    if rollouts % args.train_batch_size or args.train_batch_size % ranks:
        what = f"--train_batch_size {args.train_batch_size} does not divide the {rollouts} rollouts of a global step"
        what += f" into batches for {ranks} ranks" if ranks > 1 else ""
        sizes = {f"--{name}": math.gcd(getattr(args, name), share) for name in _MICRO if share % getattr(args, name)}
        also = "".join(f" {name} {size}" for name, size in sizes.items())
        yield Problem(what, f"set --train_batch_size {rollouts}{also}, which is one optimizer step on all of them")
        return  # micro-batches that no setting gives follow from it
    if args.train_batch_size % least:
        what = f"--train_batch_size {args.train_batch_size} is not a multiple of --micro_train_batch_size x ranks"
        what += f" = {least}"
        yield Problem(what, f"set --micro_train_batch_size to a divisor of {args.train_batch_size // ranks}")
    if share % args.micro_rollout_batch_size:
        what = (
            f"--micro_rollout_batch_size {args.micro_rollout_batch_size} does not divide the {share} rollouts of a rank"
        )
        yield Problem(what, f"set it to a divisor of {share}")
    length = count_steps(args, prompts) * count_updates(args) if prompts else 0
    if args.lr_scheduler != "constant" and LearningRate.of_run(args, length).warm_up >= length > 1:
        what = (
            f"--lr_warmup_ratio {args.lr_warmup_ratio:g}: all {length} optimizer steps of the run would be its warmup"
        )
        yield Problem(what, "give --lr_warmup_ratio 0.03, or raise --steps")


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
    """Return the prompts of each split as the engines get them.

    Their length is 0 where an environment renders them, and before the model is here.

    Raises:
        UserError: if they cannot be rendered.
    """
    args, prompts = config.args, [record.prompt for records in read.values() for record in records]
    rendered: Iterator[Rendered] = (Rendered(0, str(prompt)) for prompt in prompts)
    if prompts and args.apply_chat_template and can_format_chats(Path(args.pretrain)):
        given = variables(args.reasoning_effort, args.template_variables, args.template_date)
        rendered = iter(rendering.render(args.pretrain, prompts, given))
    return {split: list(islice(rendered, len(records))) for split, records in read.items()}


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
        is_all = len(leaked) == len(read["train"])
        remove = "python -m data.prepare --decontaminate removes problems of eval from train"
        yield Problem(
            f"TRAIN_DATA: the prompt of line {line} is also in EVAL_DATA, line {other}{others}",
            _suggest_hold_out(config) if is_all else remove,
        )
