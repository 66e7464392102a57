"""Settings of the judge: hyperparameters of `train_grpo.sh`, which reach every worker as GRPO_* variables.

The key is not a setting. It is read from GEMINI_API_KEY or GOOGLE_API_KEY when it is used, and kept nowhere. If both
are set, GOOGLE_API_KEY counts, as in google-genai.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

VARIABLES = (
    "JUDGE",
    "JUDGE_MODELS",
    "CORRECTNESS_WEIGHT",
    "QUALITY_WEIGHT",
    "JUDGE_FALLBACK",
    "JUDGE_UNFINISHED",
    "JUDGE_TRIES",
    "JUDGE_DEADLINE",
    "JUDGE_CALL_TIMEOUT",
    "JUDGE_RPM",
    "JUDGE_TPM",
    "JUDGE_CONCURRENCY",
    "JUDGE_PRICE",
    "JUDGE_BASE_URL",
    "JUDGE_PROXY",
)
GOOGLE_URL = "https://generativelanguage.googleapis.com"  # tells Google's judgements from those of other servers
# The values of unset variables, in the directories of older runs and outside a run. `train_grpo.sh` sets all of them.
UNSET = {
    "JUDGE_BASE_URL": GOOGLE_URL,
    "JUDGE_PROXY": "0",
    "JUDGE_UNFINISHED": "0",
    "JUDGE_PRICE": "",
}
FALLBACKS = ("correctness", "mean_quality", "group")
# The address of the local stand-in server, set by the launcher if a small run has no key.
STAND_IN_VARIABLE = "GRPO_JUDGE_STAND_IN"
# In the order of google-genai.
KEY_VARIABLES = ("GOOGLE_API_KEY", "GEMINI_API_KEY")
STAND_IN_KEY = "local-stand-in"
# Requests and prompt tokens a minute: more than a small run sends. The stand-in has no quota.
STAND_IN_RPM, STAND_IN_TPM = 6_000, 10_000_000


class SettingsError(ValueError):
    """An invalid setting.

    Attributes:
        what: the variable, and what is wrong with it.
        remedy: what to do about it.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what, remedy)  # both, so that the error can be pickled
        self.what, self.remedy = what, remedy

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}"


@dataclass(frozen=True)
class ChainSettings:
    """How a chain of models is asked one question. Durations in seconds.

    `train_grpo.sh` holds the defaults of what a run's user sets.

    Attributes:
        models: ids in the order in which they are tried.
        tries: calls to each model for one question, at most.
        deadline: for one question, over all models, with all waiting.
        call_timeout: for one call.
        requests_per_window, tokens_per_window: limits of each model; tokens are those of the prompts, as in Gemini's
            quotas.
        concurrency: calls under way at once, for each model.
        max_output_tokens: of a reply; thoughts count.
        temperature: of a reply; None is the API's own.
        window: of the two limits; a minute, except in tests.
    """

    models: tuple[str, ...]
    tries: int
    deadline: float
    call_timeout: float
    requests_per_window: int
    tokens_per_window: int
    concurrency: int
    max_output_tokens: int = 16_384
    temperature: float | None = None
    window: float = 60.0


@dataclass(frozen=True)
class JudgeSettings:
    """The chain, and the weights of the reward: ``correctness_weight * correctness + quality_weight * quality``.

    Attributes:
        fallback: one of FALLBACKS.
        judges_unfinished: whether responses without a final answer are judged; else their quality is 0.
        price: of a million prompt tokens and of a million tokens of replies, in USD; None if the user gave none.
    """

    chain: ChainSettings
    correctness_weight: float
    quality_weight: float
    fallback: str
    judges_unfinished: bool
    price: tuple[float, float] | None = None


def variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that make the settings, without their prefix, as they are in the environment."""
    return {name: environ[f"GRPO_{name}"] for name in VARIABLES if f"GRPO_{name}" in environ}


def find_off_setting(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the setting that turns the judge off, None if the judge is on.

    Raises:
        SettingsError: for invalid weights.
    """
    values = variables(environ)
    if values.get("JUDGE") != "1":
        return "JUDGE is 0"
    if not _models(values):
        return "JUDGE_MODELS is empty"
    if _weights(values)[1] == 0:
        return "QUALITY_WEIGHT is 0"
    return None


def from_environment(environ: Mapping[str, str] = os.environ) -> JudgeSettings | None:
    """Return the settings, None if the judge is off, see :func:`find_off_setting`. The launcher has checked their
    ranges.

    Raises:
        SettingsError: for a value that is missing or of another type, for weights that do not add up to 1, and for a
            model that is named twice.
    """
    if find_off_setting(environ):
        return None
    values = UNSET | variables(environ)
    models = _models(values)
    if len(set(models)) < len(models):
        raise SettingsError(f"JUDGE_MODELS names a model twice ({' '.join(models)})", "name each model once")
    correctness_weight, quality_weight = _weights(values)
    prices = [_number(values | {"JUDGE_PRICE": word}, "JUDGE_PRICE") for word in values["JUDGE_PRICE"].split()]
    return JudgeSettings(
        chain=ChainSettings(
            models=models,
            tries=int(_number(values, "JUDGE_TRIES")),
            deadline=_number(values, "JUDGE_DEADLINE"),
            call_timeout=_number(values, "JUDGE_CALL_TIMEOUT"),
            requests_per_window=int(_number(values, "JUDGE_RPM")),
            tokens_per_window=int(_number(values, "JUDGE_TPM")),
            concurrency=int(_number(values, "JUDGE_CONCURRENCY")),
        ),
        correctness_weight=correctness_weight,
        quality_weight=quality_weight,
        fallback=values.get("JUDGE_FALLBACK", FALLBACKS[0]),
        judges_unfinished=values["JUDGE_UNFINISHED"] == "1",
        price=(prices[0], prices[1]) if prices else None,
    )


def adapt_to_stand_in(judge: JudgeSettings) -> JudgeSettings:
    """Return settings for the local stand-in, with its limits. The user's limits are those of a quota at Google."""
    chain = replace(judge.chain, requests_per_window=STAND_IN_RPM, tokens_per_window=STAND_IN_TPM)
    return replace(judge, chain=chain)


def _models(values: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(values.get("JUDGE_MODELS", "").replace(",", " ").split())


def _weights(values: Mapping[str, str]) -> tuple[float, float]:
    """Return the weights of correctness and of quality."""
    correctness, quality = (_number(values, name) for name in ("CORRECTNESS_WEIGHT", "QUALITY_WEIGHT"))
    if not math.isclose(correctness + quality, 1.0, abs_tol=1e-6):
        way = f"set CORRECTNESS_WEIGHT={1 - quality:g}, since " if quality <= 1 else ""
        raise SettingsError(
            f"CORRECTNESS_WEIGHT + QUALITY_WEIGHT is {correctness + quality:g}",
            f"{way}they must add up to 1: a rollout that cannot be judged is rewarded between 0 and 1",
        )
    return correctness, quality


def _number(values: Mapping[str, str], name: str) -> float:
    try:
        return float(values.get(name, ""))
    except ValueError:
        raise SettingsError(f"{name} is {values.get(name)!r}", "give a number") from None


def key_variable(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the variable that holds the key of the Gemini API, None if no variable does."""
    return next((name for name in KEY_VARIABLES if environ.get(name, "").strip()), None)


def api_key(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the key of the Gemini API, None if it is missing.

    Raises:
        SettingsError: for a key that cannot be sent; the message does not hold it.
    """
    name = key_variable(environ)
    if name is None:
        return None
    key = environ[name].strip()
    if not (key.isascii() and key.isprintable()):
        raise SettingsError(f"{name} contains characters that a key cannot have", "copy the key again and export it")
    return key


def state_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the file of judgements in the run directory.

    Raises:
        SettingsError: without a run directory.
    """
    if not environ.get("GRPO_RUN_DIR"):
        raise SettingsError("GRPO_RUN_DIR is missing", "set it to the run directory, where the judgements are kept")
    return Path(environ["GRPO_RUN_DIR"]) / "judge.sqlite"
