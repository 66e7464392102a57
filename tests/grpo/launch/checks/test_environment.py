"""An environment that cannot be is refused before a run, with the remedy."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo.environments.settings import AGENT
from grpo.launch.checks import environment
from grpo.launch.judge import choose_judge
from grpo.run.eval_metric import OUR_REWARD, USER_REWARD


@pytest.fixture
def environment_setting(setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A setting with the retrieval environment and a library of one document."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "a.txt").write_text("a text")
    monkeypatch.setenv("GRPO_ENVIRONMENT", "retrieval")
    monkeypatch.setenv("GRPO_LIBRARY", str(tmp_path / "library"))
    for name in ("TURN_LIMIT", "ROLLOUT_SECONDS", "TOOL_SECONDS", "SCORE_SECONDS", "MAX_BRANCHES"):
        monkeypatch.setenv(f"GRPO_{name}", "9")
    setting.flags |= {"agent_func_path": AGENT, "apply_chat_template": None, "remote_rm_url": OUR_REWARD}
    return setting


def test_a_sound_environment_passes_without_a_judge(environment_setting, monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment_setting.find_problems() == []
    monkeypatch.setenv("GRPO_JUDGE", "1")
    judge = choose_judge(environment_setting.make_config(), may_stand_in=True)
    assert judge.settings is None and judge.why_off == "the environment gives the reward"


@pytest.mark.parametrize(
    ("variables", "changes", "names"),
    [
        ({"ENVIRONMENT": "retrieve"}, {}, "ENVIRONMENT retrieve"),
        ({"LIBRARY": "/none"}, {}, "--library /none"),
        ({"LIBRARY": ""}, {}, "set --library"),
        ({"TURN_LIMIT": "0"}, {}, "--turn_limit"),
        ({}, {"remote_rm_url": USER_REWARD}, "unset REWARD"),
    ],
)
def test_what_cannot_be_is_refused(environment_setting, monkeypatch, variables, changes, names) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"GRPO_{name}", value)
    [problem] = environment_setting.find_problems(**changes)
    assert names in problem and "->" in problem


GUESS = """
from grpo.environments import environment

class Environment(environment.Environment):
    async def score(self, messages, ending):
        return environment.Score(1.0, 1.0)
"""


@pytest.fixture
def several_environments(environment_setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A setting with single answers, which get three of four problems, and an environment of a file."""
    (tmp_path / "guess.py").write_text(GUESS)
    monkeypatch.setenv("GRPO_ENVIRONMENT", f"single {tmp_path / 'guess.py'}")
    monkeypatch.setenv("GRPO_ENVIRONMENT_WEIGHTS", "3 1")
    return environment_setting


def write_rows(file: str, change) -> None:
    rows = [json.loads(line) for line in Path(file).read_text().splitlines()]
    Path(file).write_text("".join(json.dumps(change(row)) + "\n" for row in rows))


def test_lines_for_single_answers_or_for_no_environment_are_named(several_environments) -> None:
    file = several_environments.make_config().args.prompt_data
    write_rows(file, lambda row: row | {"environment": "guess", "label": '{"split": "none"}'})
    assert several_environments.find_problems() == []
    for name, said in (
        ("single", "line 1 is for single answers: a label"),
        ("python", "line 1 is for the environment"),
    ):
        write_rows(file, lambda row, name=name: row | {"environment": name})
        assert said in several_environments.find_problems()[0]


@pytest.mark.parametrize(("source", "name"), [("retrieval", "tools"), ("python", "builtin_tools")])
def test_tools_that_the_chat_template_leaves_out_are_refused(environment_setting, tmp_path, monkeypatch, source, name):
    monkeypatch.setenv("GRPO_ENVIRONMENT", source)
    model = Path(shutil.copytree(environment_setting.flags["pretrain"], tmp_path / "own-model"))
    template = model / "chat_template.jinja"
    template.write_text(template.read_text().replace(name, "gadgets"))
    [problem] = environment_setting.find_problems(pretrain=str(model))
    assert f"does not read {name}" in problem and f"{source}'s tools" in problem
    template.unlink()
    assert [each for each in environment_setting.find_problems(pretrain=str(model)) if "has no chat template" in each]


COUNTER = """
from grpo.environments import environment

class Environment(environment.Environment):
    tools = [environment.Tool("add", "Add.", {"type": "object", "properties": {"number": {"type": "integer"}}})]

    async def start(self):
        START

    async def CALL(self, name, arguments):
        return self.sum(arguments["number"])

    def sum(self, number):
        SUM

    async def score(self, messages, ending):
        return environment.Score(SCORE, 1.0)
"""


@pytest.fixture
def play_counter(environment_setting, monkeypatch, tmp_path):
    """Writes COUNTER with other lines; returns what finds the problems of a run in it."""

    def write(**changes: str) -> Callable[[], list[str]]:
        code, begin = COUNTER, "return [{'role': 'user', 'content': self.prompt}]"
        lines = {"START": begin, "CALL": "call", "SUM": "return str(number + 1)", "SCORE": "1.0"}
        for name, text in (lines | changes).items():
            code = code.replace(name, text)
        (own := tmp_path / "count.py").write_text(code)
        monkeypatch.setenv("GRPO_ENVIRONMENT", str(own))
        return environment_setting.find_problems

    return write


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"CALL": "cal"}, "`call`"),
        ({"START": "import os; os._exit(0)"}, "code 0"),
        ({"START": "self.unset"}, "start failed (AttributeError"),
        ({"SCORE": "float('nan')"}, "nan"),
        ({"SCORE": "__import__('signal').signal(14, print)"}, "main thread"),
        ({"def score": "def points"}, "constructor failed (TypeError"),
        ({"SUM": "return '1' + number"}, "count.py:14 in sum)"),
        ({"SUM": "return number"}, "add returned int"),
    ],
)
def test_one_conversation_is_played_before_a_run(play_counter, changes, names) -> None:
    [problem] = play_counter(**changes)()
    assert names in problem and "count.py" in problem


@pytest.mark.parametrize(
    ("changes", "heard"),
    [
        ({}, "add({\"number\": 1}) -> '2'"),
        ({"SUM": "raise environment.ToolError('too small')"}, "'error: too small'"),
        ({"SUM": "return {}[number]"}, "KeyError: 1 ("),
        ({'{"type": "integer"}': "True", "SUM": "return number"}, 'add({"number": "1"}) -> \'1\''),
    ],
)
def test_what_was_played_is_shown(play_counter, environment_setting, changes, heard):
    assert play_counter(**changes)() == []
    [line] = environment.describe(environment_setting.make_config())
    assert "count.py: " in line and heard in line and "reward 1, score 1" in line
