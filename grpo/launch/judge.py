"""The judge of a run, before it starts: its settings, its key, whether its models exist; or a local stand-in."""

import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.launch.config import Config, ConfigError
from grpo.launch.preflight import Problem, has_own_reward
from reward import settings
from reward.settings import JudgeSettings, SettingsError
from reward.shared_state import SharedState

if TYPE_CHECKING:
    from reward.gemini import Client

# Ids that were shut down, or are answered by another model, with what Google names in their place
# (https://ai.google.dev/gemini-api/docs/deprecations and .../changelog, up to October 2026).
RETIRED = {
    "gemini-2.0-flash": "gemini-3.6-flash",
    "gemini-2.0-flash-001": "gemini-3.6-flash",
    "gemini-2.0-flash-lite": "gemini-3.1-flash-lite",
    "gemini-2.0-flash-lite-001": "gemini-3.1-flash-lite",
    "gemini-2.5-flash-preview-09-2025": "gemini-3.6-flash",
    "gemini-2.5-pro-preview-03-25": "gemini-3.1-pro-preview",
    "gemini-2.5-pro-preview-05-06": "gemini-3.1-pro-preview",
    "gemini-2.5-pro-preview-06-05": "gemini-3.1-pro-preview",
    "gemini-3-pro-preview": "gemini-3.1-pro-preview",
    "gemini-3.1-flash-lite-preview": "gemini-3.1-flash-lite",
    "gemini-3.5-flash": "gemini-3.6-flash",
    "gemini-3.7-flash": "gemini-3.8-flash",
}
MODELS_PAGE = "https://ai.google.dev/gemini-api/docs/models"
TRIES, TRY_SECONDS, RETRY_SECONDS = 3, 10.0, 1.0


@dataclass(frozen=True)
class RunJudge:
    """The judge of one run.

    Attributes:
        settings: None where the reward is correctness alone.
        is_stand_in: whether a local server answers in place of Gemini.
    """

    settings: JudgeSettings | None
    is_stand_in: bool

    @property
    def stand_in_models(self) -> list[str]:
        """Return the ids that a stand-in has to know; [] where none is to be started."""
        return list(self.settings.chain.models) if self.settings and self.is_stand_in else []


def of_run(config: Config, may_stand_in: bool) -> RunJudge:
    """Return the judge that a configuration asks for, by the GRPO_* variables of this process.

    Args:
        may_stand_in: whether a local server may answer where there is no key.

    Raises:
        ConfigError: for settings or a key that cannot be.
    """
    if not has_own_reward(config):
        return RunJudge(None, False)
    try:
        configured = settings.from_environment()
        return RunJudge(configured, configured is not None and settings.api_key() is None and may_stand_in)
    except SettingsError as error:
        raise ConfigError(str(error)) from None


def prepare(judge: RunJudge, folder: Path) -> None:
    """Let the judge of a run begin anew: only judgements stay of an earlier part. Nobody else may use the `folder`.

    Raises:
        ConfigError: where the file with them is broken.
    """
    if judge.settings is None:
        return
    path = settings.state_file({"GRPO_RUN_DIR": str(folder)})
    try:
        SharedState(path, begins_run=True).close()
    except sqlite3.Error as error:
        raise ConfigError(f"{path}: {error}; move it away: judgements are then paid for again") from None


def check(judge: RunJudge, config: Config, base_url: str | None = None) -> Iterator[Problem]:
    """Look for what would make the judge fail; asks Google for the models unless a stand-in answers.

    Args:
        base_url: of a server that speaks Gemini's API; None is Google's.
    """
    if judge.settings is None:
        return
    chain, samples = judge.settings.chain, config.samples_per_rollout
    most = chain.requests_per_window * len(chain.models) * chain.deadline / chain.window
    if samples > most:
        yield Problem(
            f"a rollout has {samples} samples, and the judge may send {most:.0f} requests within JUDGE_DEADLINE",
            "raise JUDGE_DEADLINE, or JUDGE_RPM where the quota allows it",
        )
    retired = [model for model in chain.models if model in RETIRED]
    for model in retired:
        yield Problem(f"JUDGE_MODELS names {model}, which is retired", f"put {RETIRED[model]} in its place")
    if judge.is_stand_in:
        return
    key = settings.api_key()
    if key is None:
        yield Problem(
            "the judge has no key",
            "export GEMINI_API_KEY, or set JUDGE=0 for correctness alone",
        )
        return
    yield from _check_models([model for model in chain.models if model not in retired], key, base_url)


def _check_models(models: list[str], key: str, base_url: str | None) -> Iterator[Problem]:
    """Ask the server for each model; the first that cannot be asked for ends the check."""
    from reward.gemini import CallError, Client, Kind  # seconds to import

    client = Client(key, base_url)
    for model in models:
        try:
            _find(client, model)
        except CallError as error:
            if error.kind is Kind.NO_KEY:
                yield Problem(f"the Gemini API refuses the key: {error}", "export a valid GEMINI_API_KEY, or JUDGE=0")
                return
            if error.kind is not Kind.NO_MODEL:
                yield Problem(
                    f"the Gemini API cannot be asked for {model}: {error}",
                    "see whether this machine reaches generativelanguage.googleapis.com, or set JUDGE=0",
                )
                return
            yield Problem(
                f"JUDGE_MODELS names {model}, which the Gemini API does not offer: {error}",
                f"choose one of {MODELS_PAGE}",
            )


def _find(client: "Client", model: str) -> None:
    """Ask for a model, a few times where that may help. Raises CallError."""
    from reward.gemini import CallError, Kind

    for number in range(1, TRIES + 1):
        try:
            client.find(model, TRY_SECONDS)
            return
        except CallError as error:
            if number == TRIES or error.kind in (Kind.NO_KEY, Kind.NO_MODEL, Kind.NEXT_MODEL):
                raise
            delay = RETRY_SECONDS * number if error.retry_after is None else error.retry_after
            time.sleep(min(delay, TRY_SECONDS))


def describe(judge: RunJudge) -> list[str]:
    """Return what the judge is, as lines for people."""
    if judge.settings is None:
        return ["judge       off: the reward function judges nothing but the answer"]
    reward, chain = judge.settings, judge.settings.chain
    blend = f"{reward.correctness_weight:g} correctness + {reward.quality_weight:g} quality"
    lines = [
        f"judge       {', then '.join(chain.models)}; {chain.tries} tries each, {chain.deadline:g} s for a sample",
        f"            reward = {blend}; where all fail: {reward.fallback}",
        f"            for each model at most {chain.requests_per_window:,} requests and {chain.tokens_per_window:,} "
        f"prompt tokens a minute, {chain.concurrency} at once",
    ]
    if judge.is_stand_in:
        lines.append(
            "            NO KEY: a local stand-in server answers in place of Gemini; it counts '=' and judges nothing"
        )
    return lines
