"""Checks of the judge before a run, against a server with Gemini's API."""

import socket

import pytest

from grpo.launch import judge
from grpo.launch.config import Config
from grpo.settings.recipe import default
from grpo.stack.problem import UserError
from reward import models, settings
from reward.models import RETIRED
from tests.reward.faulty import StandIn
from tests.reward.recorder import Recorder, make_redirector

from .judge_variables import KEY, VARIABLES

PASSWORD = "s3cret-of-the-proxy"


def find_problems(config: Config, url: str = "http://127.0.0.1:1", may_stand_in: bool = False) -> list[str]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GRPO_JUDGE_BASE_URL", url)
        return [str(problem) for problem in judge.check(judge.choose_judge(config, may_stand_in), config)]


@pytest.mark.parametrize("busy", [0, 2])
def test_existing_models_are_accepted(configure, busy: int) -> None:
    """The check of models tries again after a transient fault."""
    with StandIn(["first", "second"], key=KEY, busy=busy) as server:
        assert find_problems(configure(), server.url) == []


def test_each_missing_model_is_named(configure) -> None:
    with StandIn(["second"]) as server:
        [problem] = find_problems(configure(JUDGE_MODELS="first second third"), server.url)[:-1]
        assert "does not offer first: 404" in problem and models.MODELS_PAGE in problem


@pytest.mark.parametrize("model", sorted(RETIRED))
def test_a_retired_model_is_named_with_its_replacement(configure, model: str) -> None:
    with StandIn() as server:  # a server that still answers it
        [problem] = find_problems(configure(JUDGE_MODELS=f"first {model}"), server.url)
    assert f"JUDGE_MODELS: {model} is retired" in problem and f"replace it with {RETIRED[model]}" in problem
    assert len(find_problems(configure(None, JUDGE_MODELS=model), may_stand_in=True)) == 1, "even without a request"


def test_neither_replacements_nor_defaults_are_retired() -> None:
    defaults = default("JUDGE_MODELS").split()
    assert len(defaults) == 3 and not RETIRED.keys() & {*RETIRED.values(), *defaults}


def test_a_key_that_is_refused_is_one_problem_and_is_not_repeated(configure, monkeypatch: pytest.MonkeyPatch) -> None:
    with StandIn(key="another") as server:
        [problem] = find_problems(configure(), server.url)
    assert "refuses the key of GEMINI_API_KEY" in problem and KEY not in problem
    config = configure()
    monkeypatch.setenv("GOOGLE_API_KEY", "another key")
    with StandIn(key=KEY) as server:
        [problem] = find_problems(config, server.url)
    assert "the key of GOOGLE_API_KEY" in problem and "export a valid GOOGLE_API_KEY, or set JUDGE=0" in problem


@pytest.mark.parametrize("is_listening", [False, True])
def test_a_server_that_does_not_answer_is_one_problem(configure, monkeypatch, is_listening: bool) -> None:
    monkeypatch.setattr(models, "TRY_SECONDS", 0.2)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        if is_listening:
            nobody.listen()
        [problem] = find_problems(configure(), f"http://127.0.0.1:{nobody.getsockname()[1]}")
    assert "cannot be asked about first" in problem and "JUDGE=0" in problem and KEY not in problem


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_an_address_that_redirects_is_one_problem(configure, status: int) -> None:
    with Recorder() as foreign, make_redirector(status, foreign.url) as server:
        [problem] = find_problems(configure(), server.url)
        assert foreign.seen == [] and len(server.seen) == 1
    assert f"redirects ({status}) to the host {foreign.host}" in problem and KEY not in problem
    assert f"set JUDGE_BASE_URL to the API's own address: {server.url} is wrong" in problem


def test_remedy_names_an_unused_proxy(configure, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure()
    with Recorder() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:{PASSWORD}@{proxy.host}")
        [problem] = find_problems(config, "https://127.0.0.1:1")
        assert proxy.seen == []
    assert "reaches 127.0.0.1:1, or set JUDGE_PROXY=1 to use the proxy of HTTPS_PROXY, or set JUDGE=0" in problem


def test_the_plan_says_where_requests_go(configure, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure()
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:{PASSWORD}@proxy.example:1")
    monkeypatch.setenv("GRPO_JUDGE_BASE_URL", "https://gateway.example")
    lines = judge.describe(judge.choose_judge(config, False), config)
    assert "            requests go to https://gateway.example, without a proxy" in lines
    assert sum("HTTPS_PROXY names a proxy that is not used: JUDGE_PROXY=1" in line for line in lines) == 1
    monkeypatch.setenv("GRPO_JUDGE_PROXY", "1")
    lines = judge.describe(judge.choose_judge(config, False), config)
    assert any("https://gateway.example, through the proxy http://proxy.example:1 of HTTPS_PROXY" in s for s in lines)
    assert PASSWORD not in "".join(lines)
    stand_in = judge.describe(judge.choose_judge(configure(None, JUDGE_PROXY="1"), True), config)
    assert not any("proxy" in line or "gateway" in line for line in stand_in), "it is asked directly"


CALLS, TRY = "calls per step: ", "a try times out after 90 s; if no model answers, the deadline allows "


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, CALLS + "up to 64 plus failed tries; JUDGE_UNFINISHED=0 judges only rollouts with a final answer"),
        (
            {"JUDGE_UNFINISHED": "0"},
            CALLS + "one for each of 64 rollouts with a final answer, plus failed tries (JUDGE_UNFINISHED=0)",
        ),
        (
            {"JUDGE_MODELS": "first second third"},
            TRY + "4 tries: 90 and 70 s for first, 40 s for second, 40 s for third",
        ),
        ({"JUDGE_MODELS": "only"}, TRY + "3 tries: 90, 90 and 60 s for only"),
        ({"JUDGE_CALL_TIMEOUT": "20"}, TRY.replace("90", "20") + "all 6 tries"),
    ],
)
def test_the_plan_says_what_a_step_costs_in_calls_and_how_many_tries_fit(configure, changes, said: str) -> None:
    config = configure(**changes)
    assert f"            {said}" in judge.describe(judge.choose_judge(config, False), config)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"GOOGLE_GEMINI_BASE_URL": "https://gateway.example"}, "set JUDGE_BASE_URL to the address you mean"),
        ({"GRPO_JUDGE_PROXY": "1"}, "export HTTPS_PROXY, or set JUDGE_PROXY=0"),
        ({"GRPO_JUDGE_BASE_URL": "http://gateway.example"}, "use https"),
        ({"GRPO_JUDGE_TRIES": "none"}, "JUDGE_TRIES"),
        ({"GEMINI_API_KEY": f"{PASSWORD}\x07-not-a-key"}, "GEMINI_API_KEY"),
        # The address is written into the run directory, even without requests.
        (
            {"GRPO_JUDGE": "0", "GRPO_JUDGE_BASE_URL": f"https://u:{PASSWORD}@gateway.example"},
            "a user name or a password",
        ),
    ],
)
@pytest.mark.parametrize("may_stand_in", [True, False])
def test_what_cannot_be_is_refused_and_not_repeated(configure, monkeypatch, variables, message, may_stand_in) -> None:
    config = configure()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=message) as refusal:
        judge.choose_judge(config, may_stand_in)
    assert PASSWORD not in str(refusal.value)


def test_missing_key_is_rejected_unless_a_stand_in_is_allowed(configure) -> None:
    config = configure(None)
    [problem] = find_problems(config)
    assert "no key" in problem and "export GEMINI_API_KEY, or set JUDGE=0" in problem
    assert find_problems(config, may_stand_in=True) == []
    chosen = judge.choose_judge(config, True)
    assert chosen.stand_in_models == ["first", "second"]
    assert any("NO KEY" in line for line in judge.describe(chosen, config))
    config = configure()
    chosen = judge.choose_judge(config, True)
    assert not chosen.is_stand_in and chosen.stand_in_models == [], "there is a key"
    assert not any("stand-in" in line for line in judge.describe(chosen, config))


def test_a_judge_that_is_off_needs_nothing(setting, configure) -> None:
    for changes, why in (
        ({"JUDGE": "0"}, "JUDGE is 0"),
        ({"JUDGE_MODELS": ""}, "JUDGE_MODELS is empty"),
        ({"CORRECTNESS_WEIGHT": "1", "QUALITY_WEIGHT": "0"}, "QUALITY_WEIGHT is 0"),
    ):
        config = configure("AIza\x07-not-a-key", **(VARIABLES | changes))
        assert find_problems(config) == [] and judge.choose_judge(config, True).stand_in_models == []
        assert f"correctness alone, because {why}" in judge.describe(judge.choose_judge(config, True), config)[0]
    configure(None)
    of_own_reward = judge.choose_judge(setting.make_config(), True)
    assert (
        of_own_reward.settings is None and not of_own_reward.is_stand_in and find_problems(setting.make_config()) == []
    )
    assert judge.describe(of_own_reward, setting.make_config()) == []


def test_the_limits_of_the_stand_in_are_its_own(configure) -> None:
    """This holds even for low limits of the user, which describe a quota at Google."""
    config = configure(None, JUDGE_RPM="1", JUDGE_TPM="1")
    stand_in = judge.choose_judge(config, True).settings
    assert stand_in and stand_in.chain.requests_per_window == settings.STAND_IN_RPM
    assert stand_in.chain.tokens_per_window == settings.STAND_IN_TPM
    google = judge.choose_judge(config, False).settings
    assert google and (google.chain.requests_per_window, google.chain.tokens_per_window) == (1, 1)


def test_a_rollout_that_cannot_be_judged_in_time_is_refused(configure) -> None:
    # 64 samples, and 2 models x 10 a minute x 2 minutes
    with StandIn() as server:
        [problem] = find_problems(configure(JUDGE_RPM="10", JUDGE_DEADLINE="120"), server.url)
    assert "64 rollouts, but the judge can send only 40 requests" in problem and "JUDGE_DEADLINE" in problem
