"""Settings of the judge: hyperparameters of `train_grpo.sh`, which reach every worker as GRPO_* variables.

The key is not a setting. It is read from GOOGLE_API_KEY or GEMINI_API_KEY when it is used, and kept nowhere.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

VARIABLES = (
    "JUDGE", "JUDGE_MODELS", "CORRECTNESS_WEIGHT", "QUALITY_WEIGHT", "JUDGE_FALLBACK", "JUDGE_UNFINISHED",
    "JUDGE_TRIES", "JUDGE_DEADLINE", "JUDGE_CALL_TIMEOUT", "JUDGE_RPM", "JUDGE_CONCURRENCY", "JUDGE_BASE_URL",
)  # fmt: skip
GOOGLE_URL = "https://generativelanguage.googleapis.com"  # tells Google's judgements from those of other servers
# The address of the local stand-in server, set by the launcher if a small run has no key.
STAND_IN_VARIABLE = "GRPO_JUDGE_STAND_IN"
STAND_IN_KEY = "local-stand-in"
STAND_IN_RPM = 6_000  # more than a small run sends
KEY_VARIABLES = ("GOOGLE_API_KEY", "GEMINI_API_KEY")  # the first that is set counts, as in google-genai
_FOREIGN_VARIABLE = "GOOGLE_GEMINI_BASE_URL"  # google-genai's; ours is passed to it, so this one has no effect
# Narrow on purpose: parsers disagree on what else an address may hold. Unencrypted only to this machine.
_ADDRESS = re.compile(
    r"(?:https://[a-z0-9._-]+|http://(?:127\.0\.0\.1|localhost))(?::\d{1,5})?(?:/[\w./~-]*)?", re.ASCII | re.IGNORECASE
)


class SettingsError(ValueError):
    """An invalid setting or label: what is wrong with it, and what to do about it."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what, remedy)  # both, so that the error can be pickled
        self.what, self.remedy = what, remedy

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}"


@dataclass(frozen=True)
class ChainSettings:
    """How a chain of models is asked one question. Durations in seconds."""

    models: tuple[str, ...]
    tries: int  # for each model
    deadline: float  # over all models, with all waiting
    call_timeout: float
    requests_per_window: int  # to each model
    concurrency: int  # of calls to each model
    max_output_tokens: int = 16_384  # thoughts count
    window: float = 60.0  # other values are for tests


@dataclass(frozen=True)
class JudgeSettings:
    """The chain, the weights of the reward, --judge_fallback, and --judge_unfinished."""

    chain: ChainSettings
    correctness_weight: float
    quality_weight: float
    fallback: str
    judges_unfinished: bool


def variables() -> dict[str, str]:
    """Return the variables that make the settings, without their prefix, as they are in the environment."""
    return {name: os.environ[f"GRPO_{name}"] for name in VARIABLES if f"GRPO_{name}" in os.environ}


def find_off_setting() -> str | None:
    """Return the setting that turns the judge off, None if the judge is on. Raises SettingsError for its weights."""
    values = variables()
    if values.get("JUDGE") != "1":
        return "--judge is off"
    if not _models(values):
        return "--judge_models is empty"
    return "--quality_weight is 0" if _weights(values)[1] == 0 else None


def from_environment(is_stand_in: bool = False) -> JudgeSettings | None:
    """Return the settings, None if the judge is off. The local stand-in has no quota: --judge_rpm is yours at Google.

    Raises SettingsError for a missing value, one of another type, or an invalid combination.
    """
    if find_off_setting():
        return None
    values = variables()
    models = _models(values)
    if len(set(models)) < len(models):
        raise SettingsError(f"--judge_models names a model twice ({' '.join(models)})", "name each model once")
    deadline, call_timeout = _number(values, "JUDGE_DEADLINE"), _number(values, "JUDGE_CALL_TIMEOUT")
    tries, rpm, at_once = (int(_number(values, f"JUDGE_{name}")) for name in ("TRIES", "RPM", "CONCURRENCY"))
    chain = ChainSettings(models, tries, deadline, call_timeout, STAND_IN_RPM if is_stand_in else rpm, at_once)
    fallback = values.get("JUDGE_FALLBACK", "correctness")
    return JudgeSettings(chain, *_weights(values), fallback, values.get("JUDGE_UNFINISHED") == "1")


def _models(values: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(values.get("JUDGE_MODELS", "").replace(",", " ").split())


def _weights(values: Mapping[str, str]) -> tuple[float, float]:
    """Return the weights of correctness and of quality."""
    correctness, quality = _number(values, "CORRECTNESS_WEIGHT"), _number(values, "QUALITY_WEIGHT")
    if not math.isclose(correctness + quality, 1.0, abs_tol=1e-6):
        what = f"--correctness_weight + --quality_weight is {correctness + quality:g}"
        raise SettingsError(what, f"set --correctness_weight {1 - quality:g}, since they must add up to 1")
    return correctness, quality


def _number(values: Mapping[str, str], name: str) -> float:
    try:
        return float(values.get(name, ""))
    except ValueError:
        raise SettingsError(f"--{name.lower()} is {values.get(name)!r}", "give a number") from None


def base_url() -> str:
    """Return --judge_base_url without a slash at its end. Raises SettingsError, without the address and its secrets."""
    url = variables().get("JUDGE_BASE_URL", GOOGLE_URL)
    if _ADDRESS.fullmatch(url) is None:
        remedy = f"give https://HOST[:PORT][/PATH], such as {GOOGLE_URL}; http is for 127.0.0.1 only"
        raise SettingsError("--judge_base_url is invalid", remedy)
    foreign = os.environ.get(_FOREIGN_VARIABLE, "").strip()
    if foreign and foreign.rstrip("/").lower() != url.rstrip("/").lower():
        what = f"{_FOREIGN_VARIABLE} names another address than --judge_base_url ({url}), and has no effect"
        raise SettingsError(what, f"set --judge_base_url to the address you mean, and unset {_FOREIGN_VARIABLE}")
    return url.rstrip("/")


def key_variable() -> str | None:
    """Return the variable that holds the key of the Gemini API, None if no variable does."""
    return next((name for name in KEY_VARIABLES if os.environ.get(name, "").strip()), None)


def api_key() -> str | None:
    """Return the key of the Gemini API, None if it is missing. Raises SettingsError, without it, if it is malformed."""
    name = key_variable()
    key = os.environ[name].strip() if name else None
    if key and not (key.isascii() and key.isprintable()):
        raise SettingsError(f"{name} contains characters that a key cannot have", "copy the key again and export it")
    return key
