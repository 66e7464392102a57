"""Checks of the judge before a run, against a server with Gemini's API."""

import socket

import pytest

from grpo.launch import judge
from grpo.launch.config import Config
from grpo.settings.recipe import default
from grpo.stack.problem import UserError
from reward import models, settings
from reward.models import RETIRED
from reward.stand_in import StandIn
from tests.reward.recorder import Recorder, redirector

from .judge_variables import KEY, VARIABLES

PASSWORD = "s3cret-of-the-proxy"


def problems(config: Config, url: str = "http://127.0.0.1:1", may_stand_in: bool = False) -> list[str]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GRPO_JUDGE_BASE_URL", url)
        return [str(problem) for problem in judge.check(judge.of_run(config, may_stand_in), config)]


def test_existing_models_are_accepted(configure) -> None:
    with StandIn(["first", "second"], key=KEY) as server:
        assert problems(configure(), server.url) == []


def test_each_missing_model_is_named(configure) -> None:
    with StandIn(["second"]) as server:
        [problem] = problems(configure(JUDGE_MODELS="first second third"), server.url)[:-1]
        assert "does not offer first: 404" in problem and models.MODELS_PAGE in problem


@pytest.mark.parametrize("model", sorted(RETIRED))
def test_a_retired_model_is_named_with_its_replacement(configure, model: str) -> None:
    with StandIn() as server:  # a server that still answers it
        [problem] = problems(configure(JUDGE_MODELS=f"first {model}"), server.url)
    assert f"JUDGE_MODELS: {model} is retired" in problem and f"put {RETIRED[model]} in its place" in problem
    # Even without a request.
    assert len(problems(configure(None, JUDGE_MODELS=model), may_stand_in=True)) == 1


def test_no_replacement_is_retired_itself() -> None:
    assert not RETIRED.keys() & set(RETIRED.values())


def test_the_default_models_are_not_retired() -> None:
    defaults = default("JUDGE_MODELS").split()
    assert len(defaults) == 3 and not RETIRED.keys() & set(defaults)


def test_a_key_that_is_refused_is_one_problem_and_is_not_repeated(configure) -> None:
    with StandIn(key="another") as server:
        [problem] = problems(configure(), server.url)
    assert "refuses the key of GEMINI_API_KEY" in problem and KEY not in problem


def test_error_names_which_of_two_keys_was_sent(configure, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure()
    monkeypatch.setenv("GOOGLE_API_KEY", "another key")
    with StandIn(key=KEY) as server:
        [problem] = problems(config, server.url)
    assert "the key of GOOGLE_API_KEY" in problem and "export a valid GOOGLE_API_KEY, or set JUDGE=0" in problem


def test_a_server_that_cannot_be_reached_is_one_problem(configure) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        [problem] = problems(configure(), f"http://127.0.0.1:{nobody.getsockname()[1]}")
    assert "cannot be asked for first" in problem and "JUDGE=0" in problem and KEY not in problem


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_an_address_that_redirects_is_one_problem(configure, status: int) -> None:
    with Recorder() as foreign, redirector(status, foreign.url) as server:
        [problem] = problems(configure(), server.url)
        assert foreign.seen == [] and len(server.seen) == 1
    assert f"redirects ({status}) to the host {foreign.host}" in problem and KEY not in problem
    assert f"set JUDGE_BASE_URL to the API's own address: {server.url} is wrong" in problem


def test_remedy_names_an_unused_proxy(configure, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure()
    with Recorder() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:{PASSWORD}@{proxy.host}")
        [problem] = problems(config, "https://127.0.0.1:1")
        assert proxy.seen == []
    assert "reaches 127.0.0.1:1, or set JUDGE_PROXY=1 to use the proxy of HTTPS_PROXY, or set JUDGE=0" in problem


def test_the_plan_says_where_requests_go(configure, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure()
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:{PASSWORD}@proxy.example:1")
    monkeypatch.setenv("GRPO_JUDGE_BASE_URL", "https://gateway.example")
    lines = judge.describe(judge.of_run(config, False), config)
    assert "            requests go to https://gateway.example, without a proxy" in lines
    assert sum("HTTPS_PROXY names a proxy that is not used: JUDGE_PROXY=1" in line for line in lines) == 1
    monkeypatch.setenv("GRPO_JUDGE_PROXY", "1")
    lines = judge.describe(judge.of_run(config, False), config)
    assert any("https://gateway.example, through the proxy http://proxy.example:1 of HTTPS_PROXY" in s for s in lines)
    assert PASSWORD not in "".join(lines)
    stand_in = judge.describe(judge.of_run(configure(None, JUDGE_PROXY="1"), True), config)
    assert not any("proxy" in line or "gateway" in line for line in stand_in), "it is asked directly"


def test_the_plan_says_what_a_step_costs_in_calls(configure) -> None:
    for switch, said in (
        ("1", "calls per step: up to 64 plus failed tries; JUDGE_UNFINISHED=0 judges only samples with a final answer"),
        (
            "0",
            "calls per step: one for each of 64 samples with a final answer, plus failed tries; JUDGE_UNFINISHED is 0",
        ),
    ):
        config = configure(JUDGE_UNFINISHED=switch)
        assert f"            {said}" in judge.describe(judge.of_run(config, False), config)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"JUDGE_MODELS": "first second third"},
            "a try takes up to 90 s; if no model answers, the deadline leaves 4 tries: 90 and 70 s "
            "for first, 40 s for second, 40 s for third",
        ),
        (
            {"JUDGE_MODELS": "only"},
            "a try takes up to 90 s; if no model answers, the deadline leaves 3 tries: 90, 90 and 60 s for only",
        ),
        (
            {"JUDGE_CALL_TIMEOUT": "20"},
            "a try takes up to 20 s; if no model answers, the deadline leaves time for all 6 tries",
        ),
    ],
)
def test_plan_shows_how_many_tries_fit_the_deadline(configure, changes, said: str) -> None:
    config = configure(**changes)
    assert f"            {said}" in judge.describe(judge.of_run(config, False), config)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"GOOGLE_GEMINI_BASE_URL": "https://gateway.example"}, "set JUDGE_BASE_URL to the address you mean"),
        ({"GRPO_JUDGE_PROXY": "1"}, "export HTTPS_PROXY, or set JUDGE_PROXY=0"),
        ({"GRPO_JUDGE_BASE_URL": "http://gateway.example"}, "use https"),
    ],
)
def test_requests_that_would_go_elsewhere_are_refused(configure, monkeypatch, variables, message: str) -> None:
    config = configure()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=message):
        judge.of_run(config, True)


def test_password_in_the_address_is_rejected_even_without_requests(configure, monkeypatch) -> None:
    """The address is written into the run directory."""
    monkeypatch.setenv("GRPO_JUDGE_BASE_URL", f"https://user:{PASSWORD}@gateway.example")
    with pytest.raises(UserError, match="a user name or a password") as refusal:
        judge.of_run(configure(JUDGE="0"), False)
    assert PASSWORD not in str(refusal.value)


def test_unresponsive_server_times_out(configure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "TRY_SECONDS", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        [problem] = problems(configure(), f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert "cannot be asked for first" in problem


def test_missing_key_is_rejected_unless_a_stand_in_is_allowed(configure) -> None:
    config = configure(None)
    [problem] = problems(config)
    assert "no key" in problem and "export GEMINI_API_KEY, or set JUDGE=0" in problem
    assert problems(config, may_stand_in=True) == []
    chosen = judge.of_run(config, True)
    assert chosen.stand_in_models == ["first", "second"]
    assert any("NO KEY" in line for line in judge.describe(chosen, config))


def test_with_a_key_there_is_no_stand_in(configure) -> None:
    config = configure()
    chosen = judge.of_run(config, True)
    assert not chosen.is_stand_in and chosen.stand_in_models == []
    assert not any("stand-in" in line for line in judge.describe(chosen, config))


def test_a_judge_that_is_off_needs_nothing(configure) -> None:
    for changes, why in (
        ({"JUDGE": "0"}, "JUDGE is 0"),
        ({"JUDGE_MODELS": ""}, "JUDGE_MODELS is empty"),
        ({"CORRECTNESS_WEIGHT": "1", "QUALITY_WEIGHT": "0"}, "QUALITY_WEIGHT is 0"),
    ):
        config = configure(None, **(VARIABLES | changes))
        assert problems(config) == [] and judge.of_run(config, True).stand_in_models == []
        assert f"correctness alone, because {why}" in judge.describe(judge.of_run(config, True), config)[0]


def test_custom_reward_function_needs_no_judge(setting, configure) -> None:
    configure(None)
    run_judge = judge.of_run(setting.config(), True)
    assert run_judge.settings is None and not run_judge.is_stand_in and problems(setting.config()) == []
    assert judge.describe(run_judge, setting.config()) == []


def test_invalid_settings_are_rejected(configure) -> None:
    with pytest.raises(UserError, match="JUDGE_TRIES"):
        judge.of_run(configure(JUDGE_TRIES="none"), False)


@pytest.mark.parametrize("may_stand_in", [True, False])
def test_malformed_key_is_rejected(configure, may_stand_in: bool) -> None:
    with pytest.raises(UserError, match="GEMINI_API_KEY") as refusal:
        judge.of_run(configure("AIza\x07-not-a-key"), may_stand_in)
    assert "AIza" not in str(refusal.value)
    judge.of_run(configure("AIza\x07-not-a-key", JUDGE="0"), may_stand_in)


def test_the_limits_of_the_stand_in_are_its_own(configure) -> None:
    """This holds even for low limits of the user, which describe a quota at Google."""
    config = configure(None, JUDGE_RPM="1", JUDGE_TPM="1")
    stand_in = judge.of_run(config, True).settings
    assert stand_in and stand_in.chain.requests_per_window == settings.STAND_IN_RPM
    assert stand_in.chain.tokens_per_window == settings.STAND_IN_TPM
    google = judge.of_run(config, False).settings
    assert google and (google.chain.requests_per_window, google.chain.tokens_per_window) == (1, 1)


def test_a_rollout_that_cannot_be_judged_in_time_is_refused(configure) -> None:
    # 64 samples, and 2 models x 10 a minute x 2 minutes
    with StandIn() as server:
        [problem] = problems(configure(JUDGE_RPM="10", JUDGE_DEADLINE="120"), server.url)
    assert "64 samples, but the judge can send only 40 requests" in problem and "JUDGE_DEADLINE" in problem


def test_transient_fault_is_no_problem(configure) -> None:
    """The check of models tries again."""
    with StandIn(["first", "second"], busy=2) as server:
        assert problems(configure(), server.url) == []
