"""The address of requests, from variables: rejected values, descriptions, and no password in either."""

import pytest

from grpo.settings.table import SETTINGS
from reward import endpoint
from reward.settings import GOOGLE_URL, UNSET, SettingsError

PASSWORD = "s3cret-of-the-user"
PROXY = f"http://user:{PASSWORD}@proxy.example:3128"


@pytest.fixture(autouse=True)
def clean_variables(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name in ("GOOGLE_GEMINI_BASE_URL", "GRPO_JUDGE_BASE_URL", "GRPO_JUDGE_PROXY"):
        monkeypatch.delenv(name, raising=False)


def read_refusal(monkeypatch, **variables: str) -> str:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as said:
        endpoint.from_environment()
    assert PASSWORD not in str(said.value)
    return str(said.value)


def test_unset_variables_have_the_values_of_the_script():
    assert all(SETTINGS[name].default == UNSET[name] for name in endpoint.VARIABLES)
    assert endpoint.from_environment() == endpoint.Endpoint(GOOGLE_URL)


@pytest.mark.parametrize(
    "url",
    [
        "https://gateway.example",
        "https://gateway.example:8443/gemini/v2",
        "http://127.0.0.1:8080",
        "http://127.8.9.1",
        "http://[::1]:9",
        "http://localhost",
    ],
)
def test_valid_addresses_are_accepted(monkeypatch, url):
    for text in (url, f"{url}/"):
        monkeypatch.setenv("GRPO_JUDGE_BASE_URL", text)
        assert endpoint.from_environment().base_url == url


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "JUDGE_BASE_URL is invalid"),
        ("generativelanguage.googleapis.com", "is invalid: give https://HOST"),
        ("ftp://gateway.example", "is invalid"),
        ("https://", "is invalid"),
        ("https://gateway.example:99999", "is invalid"),
        ("https://gateway.example?key=k", "is invalid"),
        ("https://gateway.example/#a", "is invalid"),
        ("https://gateway.example\\.other.example", "is invalid"),
        ("https://gateway.example\n", "is invalid"),
        ("https://gateway .example", "is invalid"),
        ("https://g\u0430teway.example", "is invalid"),
        ("http://gateway.example", "unencrypted to gateway.example: use https"),
        ("http://0.0.0.0:1", "use https"),
        ("http://10.0.0.1", "use https"),
        ("http://127.0.0.1.example", "use https"),
        (f"https://user:{PASSWORD}@gateway.example", "a user name or a password"),
        (f"https://{PASSWORD}@gateway.example", "a user name or a password"),
    ],
)
def test_invalid_addresses_are_rejected(monkeypatch, url, message):
    assert message in read_refusal(monkeypatch, GRPO_JUDGE_BASE_URL=url)


def test_an_address_for_google_genai_is_refused_unless_it_is_ours(monkeypatch):
    said = read_refusal(monkeypatch, GOOGLE_GEMINI_BASE_URL=f"https://user:{PASSWORD}@gateway.example")
    assert "GOOGLE_GEMINI_BASE_URL names another address than JUDGE_BASE_URL" in said
    assert "set JUDGE_BASE_URL to the address you mean" in said
    for url in (GOOGLE_URL, f"{GOOGLE_URL}/", ""):
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", url)
        assert endpoint.from_environment().base_url == GOOGLE_URL
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "https://gateway.example/")
    monkeypatch.setenv("GRPO_JUDGE_BASE_URL", "https://gateway.example")
    assert endpoint.from_environment().base_url == "https://gateway.example"


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])
def test_requested_proxy_is_reported_and_used(monkeypatch, name):
    monkeypatch.setenv(name, PROXY)
    route = endpoint.from_environment()
    assert route.proxy is None and route.unused == name
    first, second = endpoint.describe(route)
    assert first == f"requests go to {GOOGLE_URL}, without a proxy"
    assert second == f"{name} names a proxy that is not used: JUDGE_PROXY=1 sends requests through it"
    monkeypatch.setenv("GRPO_JUDGE_PROXY", "1")
    route = endpoint.from_environment()
    assert route.proxy and route.proxy.url == PROXY and route.unused is None
    [line] = endpoint.describe(route)
    assert line == f"requests go to {GOOGLE_URL}, through the proxy http://proxy.example:3128 of {name}"
    assert PASSWORD not in repr(route)


@pytest.mark.parametrize(
    "variables",
    [
        {"HTTP_PROXY": PROXY},
        {"HTTPS_PROXY": PROXY, "NO_PROXY": "googleapis.com"},
        {"ALL_PROXY": PROXY, "NO_PROXY": "*"},
        {"HTTPS_PROXY": ""},
    ],
)
def test_inapplicable_proxy_is_not_reported_and_cannot_be_requested(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert len(endpoint.describe(endpoint.from_environment())) == 1
    said = read_refusal(monkeypatch, GRPO_JUDGE_PROXY="1")
    assert "name no proxy for generativelanguage.googleapis.com" in said and "JUDGE_PROXY=0" in said


@pytest.mark.parametrize("value", [f"socks5://user:{PASSWORD}@h:1", f"http://{PASSWORD}@", "http://h:99999", "http://"])
def test_a_proxy_that_cannot_be_used_is_refused_without_its_password(monkeypatch, value):
    monkeypatch.setenv("HTTPS_PROXY", value)
    assert endpoint.from_environment().unused == "HTTPS_PROXY", "it does no harm where it is not used"
    assert "HTTPS_PROXY is not the address of an http or https proxy" in read_refusal(monkeypatch, GRPO_JUDGE_PROXY="1")


def test_a_proxy_without_a_scheme_is_http(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", f"user:{PASSWORD}@proxy.example:3128")
    monkeypatch.setenv("GRPO_JUDGE_PROXY", "1")
    route = endpoint.from_environment()
    assert route.proxy and route.proxy.url == PROXY and route.proxy.shown == "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("switch", "message"), [("1", "would send the key unencrypted to the proxy"), ("yes", "JUDGE_PROXY is 'yes'")]
)
def test_a_switch_that_cannot_be_meant_is_refused(monkeypatch, switch, message):
    monkeypatch.setenv("ALL_PROXY", PROXY)
    assert message in read_refusal(monkeypatch, GRPO_JUDGE_PROXY=switch, GRPO_JUDGE_BASE_URL="http://127.0.0.1:1")
