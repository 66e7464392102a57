"""The environment of a run with several turns: its name, its library, its limits, and what it cannot go with."""

import os
from collections.abc import Iterator
from pathlib import Path

from grpo.environment import CHECKOUT
from grpo.launch.checks import Problem
from grpo.launch.config import Config
from grpo.launch.variables import in_variables
from grpo.multi_turn.environment import SetupError, load
from grpo.multi_turn.settings import Settings

AGENT = CHECKOUT / "grpo" / "multi_turn" / "agent.py"
# Their advantage is one number for a rollout, which its branches take over.
ESTIMATORS = ("dr_grpo", "rloo", "group_norm")


def has_environment(config: Config) -> bool:
    """Tell whether rollouts are conversations in an environment, which gives the reward."""
    path = config.args.agent_func_path
    return bool(path) and Path(path).resolve() == AGENT


def check_environment(config: Config) -> Iterator[Problem]:
    """Load the environment, and let it look for what it needs."""
    args = config.args
    if not has_environment(config):
        return
    try:
        load(Settings.from_variables(os.environ).environment).check()
    except SetupError as error:
        what, _, remedy = str(error).rpartition(": ")
        yield Problem(what, remedy)
    if args.apply_chat_template:
        yield Problem("an environment renders its messages itself", "leave out --apply_chat_template")
    if args.disable_fast_tokenizer:
        yield Problem("an environment needs a fast tokenizer", "leave out --disable_fast_tokenizer")
    if args.advantage_estimator not in ESTIMATORS:
        text = f"--advantage_estimator {args.advantage_estimator} has no one advantage for a rollout in an environment"
        yield Problem(in_variables(text), f"use one of {', '.join(ESTIMATORS)}")
    if args.loss_aggregation != "token_mean":
        text = f"--loss_aggregation {args.loss_aggregation} would count a rollout as often as its history is rewritten"
        yield Problem(in_variables(text), "use token_mean")
    if args.overlong_buffer_len is not None:
        text = "OVERLONG_BUFFER measures one response by its limit, and a rollout in an environment has several"
        yield Problem(text, "leave it out, and let the environment's score count what a rollout took")
    if args.stop_properly_penalty_coef is not None:
        text = "--stop_properly_penalty_coef is for one response, and a rollout in an environment has several"
        yield Problem(text, "leave it out, and let the environment's score look at `ending`")
    if args.init_kl_coef > 0 and not args.use_kl_loss:
        text = "a KL penalty in the reward makes an advantage of each token, and a rollout's samples share one"
        yield Problem(text, "add --use_kl_loss")
