"""The judge of a run before it starts: its settings, its key, and its models or the local stand-in."""

import logging
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grpo.launch.checks.data import uses_our_reward
from grpo.launch.config import Config
from grpo.rollout.multi_turn.settings import has_environment
from grpo.stack.problem import Problem, UserError
from reward import endpoint, models, settings, user_files
from reward.chain import tries_without_answer
from reward.endpoint import Endpoint
from reward.judgements import Judgements
from reward.settings import ChainSettings, JudgeSettings, SettingsError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunJudge:
    """The judge of one run.

    Attributes:
        settings: None if the reward is correctness alone.
        is_stand_in: whether a local server answers in place of Gemini.
        why_off: why `settings` is None; "" if they are set.
        endpoint: where requests go; None without a judge, or with the stand-in.
    """

    settings: JudgeSettings | None
    is_stand_in: bool
    why_off: str = ""
    endpoint: Endpoint | None = None

    @property
    def stand_in_models(self) -> list[str]:
        """Return the model ids for the stand-in; [] to start none."""
        return list(self.settings.chain.models) if self.settings and self.is_stand_in else []


def choose_judge(config: Config, may_stand_in: bool) -> RunJudge:
    """Return the judge that a configuration asks for, from this process's GRPO_* variables.

    Args:
        may_stand_in: whether a local server may answer if the key is missing.

    Raises:
        UserError: for invalid settings or an invalid key.
    """
    try:
        endpoint.base_url()  # checked even without a judge: the run directory records it
        if has_environment(config.args):
            return RunJudge(None, False, "the environment gives the reward")
        if not uses_our_reward(config):
            user_files.from_environment()  # refuses invalid settings
            return RunJudge(None, False, "REWARD is your own function")
        configured = settings.from_environment()
        if configured is None:
            return RunJudge(None, False, settings.find_off_setting() or "")
        if settings.api_key() is None and may_stand_in:
            return RunJudge(settings.adapt_to_stand_in(configured), True)
        return RunJudge(configured, False, endpoint=endpoint.from_environment())
    except SettingsError as error:
        raise UserError(error.what, error.remedy) from None


def prepare(judge: RunJudge, folder: Path) -> None:
    """Check the judgements of an earlier part of the run.

    Raises:
        UserError: if the file of judgements is broken.
    """
    if judge.settings is None:
        return
    path = settings.state_file({"GRPO_RUN_DIR": str(folder)})
    try:
        Judgements(path).close()
    except sqlite3.Error as error:
        raise UserError(
            f"{path} cannot be read ({error})", "move it away; you then pay for its judgements again"
        ) from None


def finish(judge: RunJudge, folder: Path) -> None:
    """Merge the file of judgements with its log: the judge's process was killed without closing it."""
    path = settings.state_file({"GRPO_RUN_DIR": str(folder)})
    if judge.settings is None or not path.is_file():
        return
    try:
        Judgements(path).close()
    except sqlite3.Error as error:
        logger.warning("%s was not merged: %s", path, error)


def check_settings(judge: RunJudge, config: Config) -> Iterator[Problem]:
    """Yield what makes the judge fail wherever the run starts."""
    if judge.settings is None:
        return
    chain, rollouts = judge.settings.chain, config.rollouts_per_step
    most = chain.requests_per_window * len(chain.models) * chain.deadline / chain.window
    if rollouts > most:
        yield Problem(
            f"a global step has {rollouts} rollouts, but the judge can send only {most:.0f} requests within "
            "JUDGE_DEADLINE",
            "raise JUDGE_DEADLINE, or JUDGE_RPM if your quota allows it",
        )
    for retired in models.find_retired(chain.models):
        yield Problem(f"JUDGE_MODELS: {retired.what}", retired.remedy)


def check(judge: RunJudge, config: Config) -> Iterator[Problem]:
    """Yield whatever would make the judge fail. Asks the API for the models unless the stand-in answers."""
    yield from check_settings(judge, config)
    if judge.settings is None or judge.endpoint is None:
        return
    key = settings.api_key()
    if key is None:
        yield Problem(
            "the judge has no key",
            "export GEMINI_API_KEY, or set JUDGE=0 to reward correctness alone",
        )
        return
    current = [model for model in judge.settings.chain.models if model not in models.RETIRED]
    for missing in models.find_missing(current, key, judge.endpoint):
        yield Problem(f"JUDGE_MODELS: {missing.what}", f"{missing.remedy}, or set JUDGE=0")


def describe(judge: RunJudge, config: Config) -> list[str]:
    """Describe the judge in lines for people; without one, why our reward is correctness alone."""
    if judge.settings is None:
        is_ours = uses_our_reward(config) and not has_environment(config.args)
        return [f"reward      correctness alone, because {judge.why_off}"] if is_ours else []
    reward, chain = judge.settings, judge.settings.chain
    blend = f"{reward.correctness_weight:g} correctness + {reward.quality_weight:g} quality"
    if judge.is_stand_in:
        return [
            "judge       NO KEY: a local server answers instead of Gemini; its scores mean nothing",
            f"            reward = {blend}",
        ]
    lines = [
        f"judge       {', then '.join(chain.models)}; {chain.tries} tries each, {chain.deadline:g} s per rollout",
        f"            {_count_slow_tries(chain)}",
        f"            {_calls(reward, config)}",
        f"            reward = {blend}; if all models fail: {reward.fallback}",
    ]
    if judge.endpoint:
        lines += [f"            {line}" for line in endpoint.describe(judge.endpoint)]
    lines.append(
        f"            per model at most {chain.requests_per_window:,} requests and {chain.tokens_per_window:,} "
        f"prompt tokens per minute, {chain.concurrency} at once"
    )
    return lines


def _count_slow_tries(chain: ChainSettings) -> str:
    """Return how many tries a rollout gets if no model answers in time."""
    tries = tries_without_answer(chain)
    count, whole = sum(map(len, tries)), chain.tries * len(chain.models)
    begin = f"a try times out after {chain.call_timeout:g} s; if no model answers, the deadline allows"
    if count == whole and min(map(min, tries)) == chain.call_timeout:
        return f"{begin} all {whole} tries"
    each = []
    for model, seconds in zip(chain.models, tries, strict=True):
        *first, last = (f"{round(second, 1):g}" for second in seconds)
        each.append(f"{', '.join(first)}{' and ' if first else ''}{last} s for {model}")
    return f"{begin} {count} tries: {', '.join(each)}"


def _calls(reward: JudgeSettings, config: Config) -> str:
    """Return how many calls a step costs."""
    rollouts = f"{config.rollouts_per_step:,}"
    # Prompts drawn to fill a batch are judged too.
    more = ", plus those for prompts that --dynamic_filtering drops" if config.args.dynamic_filtering else ""
    if reward.judges_unfinished:
        cost = f"up to {rollouts} plus failed tries{more}; JUDGE_UNFINISHED=0 judges only rollouts with a final answer"
    else:
        cost = f"one for each of {rollouts} rollouts with a final answer, plus failed tries{more} (JUDGE_UNFINISHED=0)"
    return f"calls per step: {cost}"
