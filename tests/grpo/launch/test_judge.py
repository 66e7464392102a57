"""Checks of the judge before a run, against a server with Gemini's API."""

import socket

import pytest

from grpo.flags.parser import get_default
from grpo.launch import judge
from grpo.launch.config import Config
from grpo.stack.problem import UserError
from reward import gemini, settings
from tests.reward.gemini_server import Answer, GeminiServer, error

from .conftest import KEY, VARIABLES

PASSWORD = "s3cret-of-the-user"


def find_problems(config: Config, url: str = "http://127.0.0.1:1", may_stand_in: bool = False) -> list[str]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GRPO_JUDGE_BASE_URL", url)
        return [str(problem) for problem in judge.check(judge.choose_judge(config, may_stand_in), config)]


@pytest.mark.parametrize("busy", [0, 2])
def test_existing_models_are_accepted(configure, busy: int) -> None:
    """The check of models tries again after a transient fault."""
    with GeminiServer(lambda number, model: error(503) if number < busy else None) as server:
        assert find_problems(configure(), server.url) == []


def test_each_missing_model_is_named(configure) -> None:
    assert len(get_default("judge_models").split()) == 3
    with GeminiServer(models=["second"]) as server:
        problems = find_problems(configure(JUDGE_MODELS="first second third"), server.url)
    assert ["first: 404" in problems[0], "third: 404" in problems[1], len(problems)] == [True, True, 2]
    assert all(gemini.MODELS_PAGE in problem for problem in problems)


@pytest.mark.parametrize("name", settings.KEY_VARIABLES)
def test_a_key_that_is_refused_is_one_problem_and_is_not_repeated(configure, monkeypatch, name: str) -> None:
    config = configure()
    monkeypatch.setenv(name, KEY)
    answer = error(400, "{key} is not valid", ErrorInfo={"reason": "API_KEY_INVALID"})
    with GeminiServer(lambda number, model: answer) as server:
        [problem] = find_problems(config, server.url)
    assert f"refuses the key of {name}" in problem and "--no-judge" in problem and KEY not in problem


@pytest.mark.parametrize("is_listening", [False, True])
def test_a_server_that_does_not_answer_is_one_problem(configure, monkeypatch, is_listening: bool) -> None:
    monkeypatch.setattr(gemini, "FIND_SECONDS", 0.2)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        if is_listening:
            nobody.listen()
        [problem] = find_problems(configure(), f"http://127.0.0.1:{nobody.getsockname()[1]}")
    assert "cannot be asked about first" in problem and "--no-judge" in problem and KEY not in problem


def test_an_address_that_redirects_is_one_problem_and_its_target_gets_nothing(configure) -> None:
    with GeminiServer() as foreign:
        location = {"Location": f"{foreign.url}/models/first"}
        with GeminiServer(lambda number, model: Answer(302, headers=location)) as server:
            [problem] = find_problems(configure(), server.url)
        assert foreign.looked_up == []
    assert "redirects (302)" in problem and server.url in problem and KEY not in problem


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"GOOGLE_GEMINI_BASE_URL": "https://gateway.example"}, "GOOGLE_GEMINI_BASE_URL"),
        ({"GRPO_JUDGE_TRIES": "none"}, "--judge_tries"),
        ({"GEMINI_API_KEY": f"{PASSWORD}\x07-not-a-key"}, "GEMINI_API_KEY"),
        # The address is written into the run directory, even without requests.
        ({"GRPO_JUDGE": "0", "GRPO_JUDGE_BASE_URL": f"https://u:{PASSWORD}@gateway.example"}, "--judge_base_url"),
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
    config = configure(None, JUDGE_RPM="100")
    [problem] = find_problems(config)
    assert "no key" in problem and "GEMINI_API_KEY" in problem and "--no-judge" in problem
    assert find_problems(config, may_stand_in=True) == []
    chosen = judge.choose_judge(config, True)
    assert chosen.settings and chosen.settings.chain.requests_per_window == settings.STAND_IN_RPM, "it has no quota"
    assert any("NO KEY" in line for line in judge.describe(chosen, config))
    assert not judge.choose_judge(configure(), True).is_stand_in, "there is a key"


def test_a_judge_that_is_off_needs_nothing(setting, configure) -> None:
    weights = {"CORRECTNESS_WEIGHT": "1", "QUALITY_WEIGHT": "0"}
    for changes, flag in (
        ({"JUDGE": "0"}, "--judge"),
        ({"JUDGE_MODELS": ""}, "--judge_models"),
        (weights, "--quality"),
    ):
        config = configure("AIza\x07-not-a-key", **(VARIABLES | changes))
        assert find_problems(config) == [] and flag in judge.describe(judge.choose_judge(config, True), config)[0]
    configure(None)
    assert judge.choose_judge(setting.make_config(), True).settings is None, "a reward of one's own"


def test_a_rollout_that_cannot_be_judged_in_time_is_refused(configure) -> None:
    # 64 samples, and 2 models x 10 a minute x 2 minutes
    with GeminiServer() as server:
        [problem] = find_problems(configure(JUDGE_RPM="10", JUDGE_DEADLINE="120"), server.url)
    assert "64 rollouts, but the judge can send only 40 requests" in problem and "--judge_deadline" in problem
