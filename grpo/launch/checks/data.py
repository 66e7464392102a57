"""The data files of a run: prompts and labels."""

from collections.abc import Iterator
from pathlib import Path

from grpo.environment import CHECKOUT
from grpo.launch import data_files
from grpo.launch.checks import Problem
from grpo.launch.config import Config


def check_data(config: Config) -> Iterator[Problem]:
    """Read both data files; a stock trainer with too few prompts ends without a step and without an error."""
    args = config.args
    read: dict[str, list[data_files.Record]] = {}
    for variable, path, split in (("TRAIN_DATA", args.prompt_data, "train"), ("EVAL_DATA", args.eval_dataset, "eval")):
        if not path:
            if split == "train":
                yield Problem("no training data", "set TRAIN_DATA to a .jsonl file; python -m data.prepare writes one")
            continue
        labels_of = split if has_own_reward(config) else None
        try:
            read[split] = data_files.read_records(Path(path), args.input_key, args.label_key, labels_of)
        except data_files.DataError as error:
            yield Problem(str(error), f"set {variable} to a .jsonl file; python -m data.prepare writes one")
    count = len(read.get("train", ()))
    if 0 < count < args.rollout_batch_size:
        yield Problem(
            f"{args.prompt_data} has {count} prompts, a rollout takes {args.rollout_batch_size}: no step at all",
            f"set ROLLOUT_BATCH_SIZE to {count} or less, or use more data",
        )
    held_out = {record.prompt: record.line for record in read.get("eval", ())}
    leaked = [record for record in read.get("train", ()) if record.prompt in held_out]
    if leaked:
        yield Problem(
            f"{args.prompt_data}, line {leaked[0].line}: the prompt is also in {args.eval_dataset}, line "
            f"{held_out[leaked[0].prompt]}, and so are {len(leaked) - 1} others",
            "python -m data.prepare --decontaminate leaves out of train what eval has",
        )


def has_own_reward(config: Config) -> bool:
    """Tell whether the reward function is this project's, which reads labels and may have a judge."""
    return Path(config.args.remote_rm_url or "").resolve() == CHECKOUT / "reward" / "reward_func.py"
