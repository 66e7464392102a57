"""The judge of a run before it starts: its settings, its key, and its models or the local stand-in."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from grpo.environments.settings import has_environment
from grpo.launch.checks.data import uses_our_reward
from grpo.launch.config import Config
from grpo.stack.problem import Problem, UserError
from reward import gemini, settings, user_files
from reward.settings import JudgeSettings, SettingsError


@dataclass(frozen=True)
class RunJudge:
    """The judge of one run."""

    settings: JudgeSettings | None  # None if the reward is correctness alone
    is_stand_in: bool  # a local server answers in place of Gemini
    why_off: str = ""  # why there are no settings
    base_url: str = ""  # where requests go; "" without a judge, or with the stand-in


def choose_judge(config: Config, may_stand_in: bool) -> RunJudge:
    """Return the judge that a configuration asks for, from this process's GRPO_* variables.

    A local server may answer without a key if it `may_stand_in`. Raises UserError for invalid settings or keys.
    """
    try:
        base_url = settings.base_url()  # checked even without a judge: the run directory records it
        if has_environment(config.args):
            return RunJudge(None, False, "the environment gives the reward")
        if not uses_our_reward(config):
            user_files.from_environment()  # refuses invalid settings
            return RunJudge(None, False, "REWARD is your own function")
        configured = settings.from_environment()
        if configured is None:
            return RunJudge(None, False, settings.find_off_setting() or "")
        if settings.api_key() is None and may_stand_in:
            return RunJudge(settings.from_environment(is_stand_in=True), True)
        return RunJudge(configured, False, base_url=base_url)
    except SettingsError as error:
        raise UserError(error.what, error.remedy) from None


def check_settings(judge: RunJudge, config: Config) -> Iterator[Problem]:
    """Yield what makes the judge fail wherever the run starts."""
    if judge.settings is None:
        return
    chain, rollouts = judge.settings.chain, config.rollouts_per_step
    most = chain.requests_per_window * len(chain.models) * chain.deadline / chain.window
    if rollouts > most:
        what = f"a global step has {rollouts} rollouts, but the judge can send only {most:.0f} requests within "
        yield Problem(what + "--judge_deadline", "raise --judge_deadline, or --judge_rpm if your quota allows it")


def check(judge: RunJudge, config: Config) -> Iterator[Problem]:
    """Yield whatever would make the judge fail. Asks the API for the models unless the stand-in answers."""
    yield from check_settings(judge, config)
    if judge.settings is None or not judge.base_url:
        return
    key = settings.api_key()
    if key is None:
        yield Problem("the judge has no key", "export GEMINI_API_KEY, or give --no-judge to reward correctness alone")
        return
    for missing in asyncio.run(gemini.find_missing(judge.settings.chain.models, key, judge.base_url)):
        yield Problem(f"--judge_models: {missing.what}", f"{missing.remedy}, or give --no-judge")


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
    calls = f"up to {config.rollouts_per_step:,}"
    if not reward.judges_unfinished:
        calls = f"one for each of {config.rollouts_per_step:,} rollouts with a final answer"
    # Prompts drawn to fill a batch are judged too.
    more = ", plus those for prompts that --dynamic_filtering drops" if config.args.dynamic_filtering else ""
    return [
        f"judge       {', then '.join(chain.models)} at {judge.base_url}",
        f"            {chain.tries} tries each of at most {chain.call_timeout:g} s, {chain.deadline:g} s per rollout",
        f"            calls per step: {calls} plus failed tries{more}; see --judge_unfinished",
        f"            reward = {blend}; if all models fail: {reward.fallback}",
        f"            per model at most {chain.requests_per_window:,} requests per minute, {chain.concurrency} at once",
    ]
