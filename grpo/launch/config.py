"""From the trainer's flags to the resolved configuration of a run."""

import argparse
import datetime
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.flags.upstream import make_words, parse_given, trainer_parser
from grpo.rollout import chat_template
from grpo.run.run_files import RunFiles
from grpo.stack.hub import model_folder
from grpo.stack.problem import UserError

_PATHS = ("ckpt_path", "metrics_dir", "adapter")  # these are paths even where nothing is there


@dataclass(frozen=True)
class Config:
    """The flags of one run."""

    args: argparse.Namespace  # every flag of the trainer, before train_ppo_ray derives some from others
    given: dict[str, Any]  # the flags that the recipe or the user has set, in the parser's order
    argv: list[str]  # `given` as a command line

    @classmethod
    def from_given(cls, given: dict[str, Any]) -> "Config":
        """Return the configuration with these flags."""
        parser = trainer_parser()
        argv = make_words(parser, given)
        return cls(parser.parse_args(argv), given, argv)

    @property
    def values(self) -> dict[str, Any]:
        """Return every flag with its value."""
        return dict(sorted(vars(self.args).items()))

    @property
    def rollouts_per_step(self) -> int:
        """Return how many responses one global step generates."""
        return self.args.rollout_batch_size * self.args.n_samples_per_prompt

    @property
    def actor_ranks(self) -> int:
        """Return the number of training processes."""
        return self.args.actor_num_nodes * self.args.actor_num_gpus_per_node

    @property
    def engine_gpus(self) -> int:
        """Return the number of GPUs of all engines."""
        return self.args.vllm_num_engines * self.args.vllm_tensor_parallel_size

    @property
    def gpus(self) -> int:
        """Return the number of GPUs that Ray must provide."""
        if self.args.colocate_all_models:
            return max(self.actor_ranks, self.engine_gpus)
        return self.actor_ranks + self.engine_gpus

    @property
    def max_model_len(self) -> int:
        """Return the length of the longest sequence, prompt and response, in tokens."""
        return self.args.max_len or self.args.prompt_max_len + self.args.generate_max_len


def resolve(flags: list[str], run_dir: Path) -> Config:
    """Parse the trainer's flags and add what follows from the run directory. The last of repeated flags wins.

    Raises UserError on an unknown flag, or a wrong value.
    """
    given = parse_given(trainer_parser(), flags)
    for name in _PATHS:
        if given.get(name):
            given[name] = os.path.abspath(given[name])
    if not given.get("pretrain"):
        raise UserError("--pretrain is empty", "set it, or MODEL, to a model folder or a hub id")
    given["pretrain"] = model_folder(given["pretrain"])
    given["engine_model"] = model_folder(given.get("engine_model") or given["pretrain"])
    given["run_dir"] = str(run_dir)
    given.setdefault("metrics_dir", str(run_dir))
    files = RunFiles(run_dir, Path(given["metrics_dir"]))
    given.setdefault("ckpt_path", str(files.checkpoints))
    given["save_path"] = str(files.final)
    # W&B's own variables; Trackio gets the same names.
    given.setdefault("wandb_run_name", os.environ.get("WANDB_NAME") or run_dir.name)
    given.setdefault("wandb_project", os.environ.get("WANDB_PROJECT") or "gptoss-grpo")
    if chat_template.reads_date(Path(given["pretrain"])):
        given.setdefault("template_date", datetime.date.today().isoformat())
    if given.get("use_tensorboard") == "1":
        given["use_tensorboard"] = str(run_dir / "tensorboard")
    return Config.from_given(given)
