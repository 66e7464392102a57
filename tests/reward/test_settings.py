"""Settings from variables: each that cannot be is refused, and the message names it."""

import pickle

import pytest

from grpo.flags.parser import get_default
from grpo.stack.secrets import is_secret
from reward import settings
from reward.settings import GOOGLE_URL, SettingsError

from .conftest import MODELS, SETTINGS

PASSWORD = "s3cret-of-the-user"


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    """Set good variables; return what changes them, None being unset."""
    for name in (*settings.KEY_VARIABLES, *(f"GRPO_{name}" for name in settings.VARIABLES), "GOOGLE_GEMINI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)

    def change(**values: str | None) -> None:
        for name, value in values.items():
            name = f"GRPO_{name}" if name in settings.VARIABLES else name
            monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)

    change(**SETTINGS)
    return change


def test_settings_are_not_mistaken_for_secrets() -> None:
    """A secret's value is replaced wherever it is written, and does not travel to workers."""
    assert not any(map(is_secret, settings.VARIABLES)) and all(map(is_secret, settings.KEY_VARIABLES))


def test_good_settings(variables) -> None:
    judge = settings.from_environment()
    assert judge and judge.chain.models == MODELS and judge.chain.window == 60.0 and judge.judges_unfinished
    assert (judge.correctness_weight, judge.quality_weight, judge.fallback) == (0.6, 0.4, "correctness")
    variables(JUDGE_MODELS=" a, b ,c,", JUDGE_UNFINISHED=None)
    judge = settings.from_environment()
    assert judge and judge.chain.models == ("a", "b", "c") and not judge.judges_unfinished
    assert settings.base_url() == GOOGLE_URL == get_default("judge_base_url")
    variables(CORRECTNESS_WEIGHT="1", QUALITY_WEIGHT="0", JUDGE_TRIES="many")
    assert settings.from_environment() is None and "--quality_weight" in (settings.find_off_setting() or "")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("JUDGE_MODELS", "a b a"), ("CORRECTNESS_WEIGHT", "0.7"), ("QUALITY_WEIGHT", "nan"),
        *((name, value) for name in ("QUALITY_WEIGHT", "JUDGE_TRIES", "JUDGE_RPM") for value in ("much", "", None)),
        *((f"JUDGE_{name}", None) for name in ("DEADLINE", "CALL_TIMEOUT", "CONCURRENCY")),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(variables, name, value) -> None:
    variables(**{name: value})
    with pytest.raises(SettingsError, match=f"--{name.lower()}") as refusal:
        settings.from_environment()
    again = pickle.loads(pickle.dumps(refusal.value))  # a driver gets it from Ray
    assert (again.what, again.remedy) == (refusal.value.what, refusal.value.remedy)


@pytest.mark.parametrize(
    "url", ["https://gateway.example:8443/gemini/v2", "http://127.0.0.1:8080", "http://localhost", f"{GOOGLE_URL}/"]
)
def test_valid_addresses_are_accepted(variables, url) -> None:
    variables(JUDGE_BASE_URL=url, GOOGLE_GEMINI_BASE_URL=f"{url.rstrip('/')}/")
    assert settings.base_url() == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        "", "generativelanguage.googleapis.com", "ftp://gateway.example", "https://", "https://gateway.example?key=k",
        "https://gateway.example/#a", "https://gateway.example\\.other.example", "https://gateway.example\n",
        "https://g\u0430teway.example", "http://gateway.example", "http://10.0.0.1", "http://127.0.0.1.example",
        f"https://user:{PASSWORD}@gateway.example", f"https://{PASSWORD}@gateway.example",
    ],
)  # fmt: skip
def test_addresses_that_are_invalid_or_unencrypted_are_refused_and_not_repeated(variables, url) -> None:
    for values in ({"JUDGE_BASE_URL": url or "x"}, {"JUDGE_BASE_URL": None, "GOOGLE_GEMINI_BASE_URL": url or "x"}):
        variables(**values)
        with pytest.raises(SettingsError, match="--judge_base_url") as refusal:
            settings.base_url()
        assert PASSWORD not in str(refusal.value)


def test_the_key_is_the_one_that_google_genai_takes(variables) -> None:
    from google import genai

    assert settings.api_key() is None
    variables(GEMINI_API_KEY=" a\r\n", GOOGLE_API_KEY=" \n")
    assert settings.api_key() == "a"
    variables(GEMINI_API_KEY="a", GOOGLE_API_KEY="b")
    assert settings.api_key() == "b" == genai.Client(vertexai=False)._api_client.api_key
    for key in ("secret\nvalue", "secret\x1b", "secr\u00e9t", "secret\u200b"):
        variables(GOOGLE_API_KEY=key)
        with pytest.raises(SettingsError, match="GOOGLE_API_KEY") as refusal:
            settings.api_key()
        assert "secr" not in str(refusal.value)
