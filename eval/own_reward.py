"""Scores an evaluation's samples with reward functions of the user's own, by the code of training.

A sample then has the prompt that the engines got, and its label as it is in the data. config.json has `reward`: path,
SHA-256 and weight of each file.
"""

import argparse
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from eval.problems import EvalProblem
from grpo.checkpoint.digests import digest_file
from grpo.run.eval_metric import SCORE
from grpo.run.records import CONTENT, Record, read_answer
from grpo.stack.problem import UserError
from reward import user_files
from reward.settings import SettingsError
from reward.user_files import RewardFile


def add_options(command_line: argparse.ArgumentParser) -> None:
    """Add the options that name the reward."""
    group = command_line.add_argument_group(
        "your own reward", "like REWARD and --reward_weights in train_grpo.sh: the samples are scored, and not graded"
    )
    group.add_argument("--reward", type=Path, nargs="+", metavar="FILE", help=".py files with reward_func")
    group.add_argument("--reward-weights", nargs="+", metavar="W", help="a weight for each file (default: 1)")


def read_options(options: argparse.Namespace) -> list[RewardFile]:
    """Return the files that the options name; [] without any. Raises UserError for invalid options."""
    if not options.reward:
        if options.reward_weights:
            raise UserError("--reward-weights has no effect without a reward", "add --reward")
        return []
    if options.environment:
        raise UserError("--reward has no effect: the environment gives the score", "leave out one of the two")
    paths = os.pathsep.join(str(path.resolve()) for path in options.reward)
    try:
        return user_files.from_environment(
            {"GRPO_REWARD_FILES": paths, "GRPO_REWARD_WEIGHTS": " ".join(options.reward_weights or ())}
        )
    except SettingsError as error:
        raise UserError(error.what.replace("--reward_weights", "--reward-weights"), error.remedy) from None


def check(files: Sequence[RewardFile], problem: EvalProblem) -> None:
    """Call each function once on an answer to a problem, in a separate process.

    Raises:
        UserError: for a function that cannot work.
    """
    from grpo.launch.checks.reward import check_file, make_sample

    for file in files:
        for fault in check_file(file, make_sample(problem.prompt, problem.label), "--reward"):
            raise UserError(fault.what, fault.remedy)


def describe(files: Sequence[RewardFile]) -> list[dict[str, Any]]:
    """Return what config.json says of the files."""
    return [{"path": str(file.path), "sha256": digest_file(file.path), "weight": file.weight} for file in files]


def read_config(config: dict[str, Any]) -> list[RewardFile]:
    """Return the files with which an evaluation is scored; [] if it is graded."""
    return [RewardFile(Path(one["path"]), float(one["weight"])) for one in config.get("reward") or ()]


def score(samples: Sequence[Record], files: Sequence[RewardFile]) -> list[Record]:
    """Return the record of each sample with its score, without its text. As in a run, threads call the functions.

    Raises:
        UserError: if a file cannot be loaded.
    """
    from reward import user_reward

    try:
        functions = user_reward.load(files)
    except (Exception, SystemExit) as error:
        raise UserError(f"the reward cannot be loaded: {error!r}", "correct the file") from error

    def one(sample: Record) -> Record:
        query = sample["prompt"] + sample["response"]
        rewarded = user_reward.combine(functions, [query], [sample["prompt"]], [sample["label"]])
        numbers = {**rewarded["extra_logs"], "reward": rewarded["rewards"], "score": rewarded["scores"]}
        return {
            **{key: value for key, value in sample.items() if key not in CONTENT},
            **read_answer(sample),
            **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
            "measure": SCORE,
        }

    with ThreadPoolExecutor() as threads:
        return list(threads.map(one, samples))
