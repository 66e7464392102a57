"""Settings from variables: each that cannot be is refused, and the message names it."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from grpo.stack.secrets import is_secret
from reward import settings
from reward.settings import SettingsError

from .conftest import MODELS, SETTINGS

GOOD = {
    f"GRPO_{name}": value
    for name, value in (SETTINGS | settings.UNSET | {"JUDGE_UNFINISHED": "1", "JUDGE_TPM": "1000000"}).items()
}


def test_settings_are_not_mistaken_for_secrets():
    """A secret's value is replaced wherever it is written, and does not travel to workers."""
    assert not any(map(is_secret, settings.VARIABLES))
    assert all(map(is_secret, settings.KEY_VARIABLES))


def test_good_settings():
    judge = settings.from_environment(GOOD)
    assert judge and judge.chain.models == MODELS and judge.chain.window == 60.0
    assert (judge.correctness_weight, judge.quality_weight, judge.fallback) == (0.6, 0.4, "correctness")
    assert set(settings.variables(GOOD)) == set(settings.VARIABLES)


def test_a_price_is_of_prompts_and_of_replies():
    assert settings.from_environment(GOOD).price is None
    assert settings.from_environment(GOOD | {"GRPO_JUDGE_PRICE": "2 12.5"}).price == (2.0, 12.5)


@pytest.mark.parametrize("models", ["a b c", "a,b,c", " a, b ,c,"])
def test_models_are_separated_by_blanks_or_commas(models):
    judge = settings.from_environment(GOOD | {"GRPO_JUDGE_MODELS": models})
    assert judge and judge.chain.models == ("a", "b", "c")


def test_judge_is_not_called_if_quality_has_no_weight():
    weights = {"GRPO_CORRECTNESS_WEIGHT": "1", "GRPO_QUALITY_WEIGHT": "0"}
    assert settings.from_environment(GOOD | weights) is None
    assert (
        settings.find_off_setting(GOOD | weights) == "QUALITY_WEIGHT is 0" and settings.find_off_setting(GOOD) is None
    )
    with pytest.raises(SettingsError, match="set CORRECTNESS_WEIGHT=1, since they must add up to 1"):
        settings.from_environment(GOOD | {"GRPO_QUALITY_WEIGHT": "0"})


def test_the_stand_in_has_its_own_limits_and_the_other_settings():
    judge = settings.from_environment(GOOD)
    assert judge
    stand_in = settings.adapt_to_stand_in(judge)
    assert stand_in.chain.requests_per_window == settings.STAND_IN_RPM > judge.chain.requests_per_window
    assert stand_in.chain.tokens_per_window == settings.STAND_IN_TPM > judge.chain.tokens_per_window
    limits = {"requests_per_window": 1, "tokens_per_window": 1}
    assert replace(stand_in, chain=replace(stand_in.chain, **limits)) == replace(
        judge, chain=replace(judge.chain, **limits)
    )


@pytest.mark.parametrize("changes", [{"GRPO_JUDGE": "0"}, {"GRPO_JUDGE_MODELS": ""}])
def test_judge_can_be_off_with_any_other_settings(changes):
    assert settings.from_environment(changes) is None
    assert settings.from_environment(GOOD | changes | {"GRPO_JUDGE_TRIES": "many"}) is None
    assert settings.from_environment({}) is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("JUDGE_MODELS", "a b a", "names a model twice"),
        ("CORRECTNESS_WEIGHT", "0.7", "add up to 1"),
        ("QUALITY_WEIGHT", "nan", "add up to 1"),
        ("QUALITY_WEIGHT", "much", "give a number"),
        ("JUDGE_TPM", "", "give a number"),
        ("JUDGE_PRICE", "2 dear", "give a number"),
    ],
)
def test_what_cannot_be_is_refused(name, value, message):
    with pytest.raises(SettingsError, match=message) as refusal:
        settings.from_environment(GOOD | {f"GRPO_{name}": value})
    assert name.partition("_")[2] in str(refusal.value) or name in str(refusal.value)


@pytest.mark.parametrize("name", sorted(GOOD.keys() - {f"GRPO_{name}" for name in (*settings.UNSET, "JUDGE_FALLBACK")}))
def test_missing_settings_have_no_defaults(name):
    without = {key: value for key, value in GOOD.items() if key != name}
    if name in ("GRPO_JUDGE", "GRPO_JUDGE_MODELS"):
        assert settings.from_environment(without) is None
    else:
        with pytest.raises(SettingsError):
            settings.from_environment(without)


def test_older_runs_do_not_judge_responses_without_an_answer():
    older = {key: value for key, value in GOOD.items() if key != "GRPO_JUDGE_UNFINISHED"}
    for environ, expected in ((GOOD, True), (GOOD | {"GRPO_JUDGE_UNFINISHED": "0"}, False), (older, False)):
        judge = settings.from_environment(environ)
        assert judge and judge.judges_unfinished is expected


@pytest.mark.parametrize("key", ["secret\nvalue", "secret\x1b", "secr\u00e9t", "secret\u200b", "secret\u2028value"])
def test_malformed_key_is_rejected_and_not_shown(key):
    with pytest.raises(SettingsError, match="GOOGLE_API_KEY") as refusal:
        settings.api_key({"GOOGLE_API_KEY": key})
    assert "secr" not in str(refusal.value)


def test_key_precedence_matches_google_genai(monkeypatch):
    from google import genai

    for name in settings.KEY_VARIABLES:
        monkeypatch.setenv(name, f"value-of-{name}")
    assert settings.api_key() == genai.Client(vertexai=False)._api_client.api_key
    name = settings.key_variable()
    assert name and settings.api_key() == f"value-of-{name}"


def test_the_key_and_the_file():
    assert settings.api_key({}) is None and settings.api_key({"GEMINI_API_KEY": " "}) is None
    assert settings.api_key({"GOOGLE_API_KEY": "b"}) == "b"
    assert settings.api_key({"GEMINI_API_KEY": "a", "GOOGLE_API_KEY": " \n"}) == "a"
    assert settings.api_key({"GEMINI_API_KEY": " \n", "GOOGLE_API_KEY": " b\r\n"}) == "b"
    assert settings.state_file({"GRPO_RUN_DIR": "/run"}) == Path("/run/judge.sqlite")
    with pytest.raises(SettingsError, match="GRPO_RUN_DIR"):
        settings.state_file({})


def test_an_invalid_setting_reaches_the_driver_with_its_remedy():
    error = pickle.loads(pickle.dumps(SettingsError("JUDGE_RPM is 0", "give more")))
    assert (error.what, error.remedy, str(error)) == ("JUDGE_RPM is 0", "give more", "JUDGE_RPM is 0: give more")
